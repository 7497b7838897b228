#include "apps/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "engine/autograd.h"

namespace sluice {

Trainer::Trainer(GPT2& model, ParameterSpace& space, DataParallel& ranks, const Schedule& schedule,
                 const Options& options)
    : model_(model),
      space_(space),
      ranks_(ranks),
      schedule_(schedule),
      options_(options),
      upload_(space.device(), options.micro_batch, options.seq_len, options.copy_stream),
      losses_(Tensor::empty(space.device(),
                            {std::max<std::int64_t>(1, options.batch_size / ranks.control.size() /
                                                           options.micro_batch)},
                            accumulator_of(space.working().dtype()))),
      timeline_(space.device()) {
  ranks.optimizer.set_timeline(&timeline_);
  ranks.gradients.set_timeline(&timeline_);
  if (options.loss_scaling) scaler_ = LossScaler(LossScaler::State{});
  for (std::int64_t layer = 0; layer < model.config().n_layer; ++layer) {
    std::int64_t end = 0;
    for (const auto& slot : space.slots())
      if (slot.name.starts_with(fmt::format("h.{}.", layer))) end = slot.offset + slot.size;
    ends_.push_back(end);
  }
  ends_.push_back(space.size());
  model.set_before_weights([this](std::int64_t layer) {
    ranks_.optimizer.update_through(ends_[static_cast<std::size_t>(layer)]);
  });
}

Trainer::~Trainer() {
  ranks_.optimizer.set_timeline(nullptr);
  ranks_.gradients.set_timeline(nullptr);
  model_.set_before_weights({});
}

Tensor Trainer::forward(const Tensor& tokens, const Tensor& targets, double scale,
                        const DropoutSource& dropout) {
  const Recorded span(&timeline_, "forward", Timeline::Lane::compute, tokens.stream());
  Tensor loss =
      model_.loss(tokens, targets, {.scale = scale, .loss_scale = scaler_.scale()}, dropout).loss;
  // The backward pass overwrites the gradients that an update still under way would read.
  ranks_.optimizer.finish();
  return loss;
}

TrainStep Trainer::step(std::int64_t step, const Batch& batch) {
  const auto tokens_here = static_cast<std::int64_t>(batch.tokens.size());
  // Of all ranks: gradients are sums, and nothing is divided after them.
  const auto tokens_per_update = static_cast<double>(options_.batch_size * options_.seq_len);
  const std::int64_t piece = options_.micro_batch * options_.seq_len;
  TrainStep result{.rate = schedule_.at(step), .loss_scale = scaler_.scale()};
  const auto upload = [&](std::int64_t first) {
    if (first >= tokens_here) return;
    const auto part = [&](const std::vector<std::int32_t>& ids) {
      return std::span(ids).subspan(static_cast<std::size_t>(first),
                                    static_cast<std::size_t>(piece));
    };
    upload_.start(part(batch.tokens), part(batch.targets));
  };
  std::int64_t micro_batches = 0;
  space_.forget_gradients();
  upload(0);
  for (std::int64_t first = 0; first < tokens_here; first += piece) {
    upload(first + piece);
    const auto [tokens, targets] = upload_.take();
    const Tensor loss = forward(tokens, targets, 1.0 / tokens_per_update,
                                {.seed = options_.seed,
                                 .step = static_cast<std::uint64_t>(step),
                                 .first_sample = batch.first_sequence + first / options_.seq_len,
                                 .probability = static_cast<float>(options_.dropout)});
    const Tensor place = losses_.slice(micro_batches++, {1});
    place.device()->runtime().copy_within(place.view().address, loss.view().address, place.bytes(),
                                          place.stream());
    if (first + piece >= tokens_here) {
      ranks_.optimizer.prefetch();
      ranks_.gradients.expect();
    }
    {
      const Recorded span(&timeline_, "backward", Timeline::Lane::compute, tokens.stream());
      backward(loss);
    }
    upload_.done();
  }
  ranks_.gradients.finish();
  // The update is launched before anybody waits for the norm: where the norm is not finite, the
  // kernels change nothing.
  ranks_.optimizer.step(result.rate,
                        ranks_.optimizer.clip_gradients(options_.grad_clip, scaler_.scale()));
  result.gradient_norm = space_.gradient_norm();
  // Those of all micro-batches of all ranks, in the order of the batch.
  const auto here = losses_.slice(0, {micro_batches}).to_host();
  for (const double loss : ranks_.control.gather_values(std::span(here), "losses"))
    result.loss += loss;
  result.applied = std::isfinite(result.gradient_norm);
  if (!result.applied) ranks_.optimizer.retract();
  scaler_.update(result.applied);
  spans_ = timeline_.take();
  result.report = report_of(spans_, ranks_.optimizer.moved());
  return result;
}

double Trainer::evaluate(const TokenSource& tokens, std::int64_t batches) const {
  const NoGrad no_grad;
  // A rank without a batch of its own has weights to give all the same.
  ranks_.optimizer.finish();
  const DevicePtr& device = space_.device();
  const std::int64_t rows = std::min(options_.micro_batch, (tokens.size() - 1) / options_.seq_len);
  const std::int64_t count = rows * options_.seq_len;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count + 1));
  std::vector<double> losses;
  for (std::int64_t i = 0; i < batches && i * count + count < tokens.size(); ++i) {
    losses.push_back(0);
    if (i % ranks_.control.size() != ranks_.control.rank()) continue;
    tokens.read(i * count, ids);
    const Shape shape{rows, options_.seq_len};
    const auto inputs = Tensor::from_tokens(device, shape, std::span(ids).first(ids.size() - 1));
    const auto targets = Tensor::from_tokens(device, shape, std::span(ids).subspan(1));
    losses.back() =
        model_.loss(inputs, targets, {.scale = 1.0 / static_cast<double>(count)}).loss.item();
  }
  ranks_.control
      .all_reduce({reinterpret_cast<std::byte*>(losses.data()),
                   DType::f64,
                   {static_cast<std::int64_t>(losses.size())}},
                  {.label = "validation"})
      ->wait();
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

}  // namespace sluice
