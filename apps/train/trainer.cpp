#include "apps/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/autograd.h"

namespace sluice {

Trainer::Trainer(GPT2& model, ParameterSpace& space, Optimizer& optimizer, const Schedule& schedule,
                 const Options& options)
    : model_(model),
      space_(space),
      optimizer_(optimizer),
      schedule_(schedule),
      options_(options),
      upload_(space.device(), options.micro_batch, options.seq_len, options.copy_stream),
      losses_(Tensor::empty(space.device(),
                            {std::max<std::int64_t>(1, options.batch_size / options.micro_batch)},
                            accumulator_of(space.working().dtype()))),
      timeline_(space.device()) {
  optimizer.set_timeline(&timeline_);
  if (options.loss_scaling) scaler_ = LossScaler(LossScaler::State{});
  for (std::int64_t layer = 0; layer < model.config().n_layer; ++layer) {
    std::int64_t end = 0;
    for (const auto& slot : space.slots())
      if (slot.name.starts_with(fmt::format("h.{}.", layer))) end = slot.offset + slot.size;
    block_ends_.push_back(end);
  }
  model.set_before_block([this](std::int64_t layer) {
    optimizer_.update_through(block_ends_[static_cast<std::size_t>(layer)]);
  });
}

Trainer::~Trainer() {
  optimizer_.set_timeline(nullptr);
  model_.set_before_block({});
}

Tensor Trainer::forward(const Tensor& tokens, const Tensor& targets, double scale,
                        const DropoutSource& dropout) {
  const Recorded span(&timeline_, "forward", Timeline::Lane::compute, tokens.stream());
  Tensor loss =
      model_.loss(tokens, targets, {.scale = scale, .loss_scale = scaler_.scale()}, dropout).loss;
  // The backward pass overwrites the gradients that an update still under way would read.
  optimizer_.finish();
  return loss;
}

TrainStep Trainer::step(std::int64_t step, const Batch& batch) {
  const auto tokens_per_update = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t piece = options_.micro_batch * options_.seq_len;
  TrainStep result{.rate = schedule_.at(step), .loss_scale = scaler_.scale()};
  const auto upload = [&](std::int64_t first) {
    if (first >= tokens_per_update) return;
    const auto part = [&](const std::vector<std::int32_t>& ids) {
      return std::span(ids).subspan(static_cast<std::size_t>(first),
                                    static_cast<std::size_t>(piece));
    };
    upload_.start(part(batch.tokens), part(batch.targets));
  };
  std::int64_t micro_batches = 0;
  space_.forget_gradients();
  upload(0);
  for (std::int64_t first = 0; first < tokens_per_update; first += piece) {
    upload(first + piece);
    const auto [tokens, targets] = upload_.take();
    const Tensor loss = forward(tokens, targets, 1.0 / static_cast<double>(tokens_per_update),
                                {.seed = options_.seed,
                                 .step = static_cast<std::uint64_t>(step),
                                 .first_sample = batch.first_sequence + first / options_.seq_len,
                                 .probability = static_cast<float>(options_.dropout)});
    const Tensor place = losses_.slice(micro_batches++, {1});
    place.device()->runtime().copy_within(place.view().address, loss.view().address, place.bytes(),
                                          place.stream());
    if (first + piece >= tokens_per_update) optimizer_.prefetch();
    {
      const Recorded span(&timeline_, "backward", Timeline::Lane::compute, tokens.stream());
      backward(loss);
    }
    upload_.done();
  }
  space_.settle_gradients();
  // The update is launched before anybody waits for the norm: where the norm is not finite, the
  // kernels change nothing.
  optimizer_.step(result.rate, space_.clip_gradients(options_.grad_clip, scaler_.scale()));
  result.gradient_norm = space_.gradient_norm();
  for (const double loss : losses_.slice(0, {micro_batches}).to_host())
    result.loss += loss;
  result.applied = std::isfinite(result.gradient_norm);
  if (!result.applied) optimizer_.retract();
  scaler_.update(result.applied);
  spans_ = timeline_.take();
  result.report = report_of(spans_, optimizer_.moved());
  return result;
}

double Trainer::evaluate(const TokenSource& tokens, std::int64_t batches) const {
  const NoGrad no_grad;
  const DevicePtr& device = space_.device();
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
