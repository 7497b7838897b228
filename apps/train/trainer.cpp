#include "apps/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/autograd.h"

namespace sluice {

TrainStep Trainer::step(std::int64_t step, const Batch& batch) {
  const DevicePtr& device = space_.master().device();
  const auto tokens_per_update = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t piece = options_.micro_batch * options_.seq_len;
  const Shape shape{options_.micro_batch, options_.seq_len};
  TrainStep result{.rate = schedule_.at(step)};
  space_.forget_gradients();
  for (std::int64_t first = 0; first < tokens_per_update; first += piece) {
    const auto part = [&](const std::vector<std::int32_t>& ids) {
      return Tensor::from_tokens(
          device, shape,
          std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(piece)));
    };
    const DropoutSource dropout{.seed = options_.seed,
                                .step = static_cast<std::uint64_t>(step),
                                .first_sample = batch.first_sequence + first / options_.seq_len,
                                .probability = static_cast<float>(options_.dropout)};
    const auto loss = model_.loss(part(batch.tokens), part(batch.targets),
                                  {.scale = 1.0 / static_cast<double>(tokens_per_update)}, dropout);
    result.loss += loss.loss.item();
    backward(loss.loss);
  }
  space_.settle_gradients();
  result.gradient_norm = space_.gradient_norm();
  result.applied = std::isfinite(result.gradient_norm);
  if (result.applied)
    optimizer_.step(result.rate, clip_factor(result.gradient_norm, options_.grad_clip));
  return result;
}

double Trainer::evaluate(const TokenSource& tokens, std::int64_t batches) const {
  const NoGrad no_grad;
  const DevicePtr& device = space_.master().device();
  const std::int64_t rows = std::min(options_.micro_batch, (tokens.size() - 1) / options_.seq_len);
  const std::int64_t count = rows * options_.seq_len;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count + 1));
  double sum = 0;
  std::int64_t done = 0;
  for (; done < batches && done * count + count < tokens.size(); ++done) {
    tokens.read(done * count, ids);
    const Shape shape{rows, options_.seq_len};
    const auto inputs = Tensor::from_tokens(device, shape, std::span(ids).first(ids.size() - 1));
    const auto targets = Tensor::from_tokens(device, shape, std::span(ids).subspan(1));
    sum += model_.loss(inputs, targets, {.scale = 1.0 / static_cast<double>(count)}).loss.item();
  }
  return sum / static_cast<double>(done);
}

}  // namespace sluice
