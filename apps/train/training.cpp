#include "apps/train/training.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {
namespace {

SpaceOptions space_options(const TrainOptions& o, const MemoryChoice& choice,
                           const DevicePtr& host) {
  SpaceOptions options{.layout = choice.layout,
                       .narrow_gradients = choice.narrow_gradients,
                       .chunk = choice.chunk,
                       .whole_tensors = o.optimizer == "adafactor"};
  if (!choice.streams()) return options;
  options.first_on_host = fmt::format("h.{}.attn.c_attn.weight", choice.resident_blocks);
  options.host = host;
  return options;
}

std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& o, ParameterSpace& space,
                                          int places) {
  if (o.optimizer == "sgd")
    return make_sgd(space, {.momentum = o.beta1, .weight_decay = o.weight_decay}, places);
  // Not scaled by the weights, against the paper: GPT-2's start out small, and a --lr that suits
  // AdamW would come to a fiftieth of it (200 steps at 1e-3: loss 4.5 instead of 2.6).
  if (o.optimizer == "adafactor")
    return make_adafactor(space, {.weight_decay = o.weight_decay, .scale_by_weights = false});
  return make_adamw(
      space, {.beta1 = o.beta1, .beta2 = o.beta2, .epsilon = o.eps, .weight_decay = o.weight_decay},
      places);
}

Partition divide(GPT2& model, const TrainOptions& o, const RunSetup& setup,
                 const MemoryChoice& choice, int ranks) {
  const SpaceLayout layout(model.parameters(), {.narrow_gradients = choice.narrow_gradients});
  return {layout,
          {.ranks = ranks,
           .bucket_bytes = bucket_bytes(o, setup.device == DeviceKind::cuda),
           .wide_bytes = size_of(accumulator_of(setup.precision.dtype)),
           .whole_tensors = o.optimizer == "adafactor"}};
}

/// With --zero 1 a rank has the state of its own part alone.
SpaceOptions own_part(SpaceOptions options, const TrainOptions& o, const Partition& partition,
                      const Ranks& ranks) {
  if (o.zero == 1 && ranks.size() > 1) options.mine = partition.owned(ranks.rank());
  return options;
}

Trainer::Options trainer_options(const RunSetup& setup, const MemoryChoice& choice) {
  Trainer::Options options = setup.trainer;
  options.micro_batch = choice.micro_batch;
  return options;
}

}  // namespace

std::size_t largest_exchange(const TrainOptions& options, const RunSetup& setup,
                             const MemoryChoice& choice, int ranks) {
  GPT2 model(setup.config);
  const SpaceLayout layout(model.parameters(), {.narrow_gradients = choice.narrow_gradients});
  const std::size_t wide = size_of(accumulator_of(setup.precision.dtype));
  const std::size_t narrow = size_of(setup.precision.dtype);
  std::size_t bytes = 0;
  for (const auto& stretch : layout.stretches)  // a number of the norm for every block
    bytes += static_cast<std::size_t>(stretch.blocks()) * sizeof(double);
  const Partition partition = divide(model, options, setup, choice, ranks);
  for (const auto& bucket : partition.buckets()) {
    bytes =
        std::max(bytes, static_cast<std::size_t>(bucket.space.end - bucket.space.begin) * narrow);
    for (const auto& gradients : bucket.gradients)
      bytes = std::max(bytes, static_cast<std::size_t>(gradients.end - gradients.begin) *
                                  (gradients.narrow ? narrow : wide));
  }
  return bytes;
}

Training::Training(const TrainOptions& options, const RunSetup& setup, const MemoryChoice& choice,
                   const DevicePtr& device, const DevicePtr& host, Ranks among)
    : ranks(std::move(among)),
      model(setup.config),
      partition(divide(model, options, setup, choice, ranks.size())),
      space(model.parameters(), device, setup.precision.dtype, ParameterSpace::Use::training,
            own_part(space_options(options, choice, host), options, partition, ranks)),
      optimizer(make_optimizer(options, space, choice.staging)),
      parallel(space, *optimizer, partition, *ranks.data, *ranks.control,
               {.sharded = options.zero == 1,
                .overlap = options.overlap,
                .scratch = setup.device == DeviceKind::cpu}),
      trainer(model, space, parallel, setup.schedule, trainer_options(setup, choice)) {
  model.set_recompute(choice.recompute);
}

}  // namespace sluice
