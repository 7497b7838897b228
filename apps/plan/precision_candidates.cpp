#include "apps/plan/precision_candidates.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// Returns the layouts that the update rule supports, each narrower than the one before.
std::vector<StateLayout> layouts_of(const TrainOptions& o, DType working) {
  const bool split = working == DType::bf16;
  if (o.optimizer == OptimizerKind::sgd) return {StateLayout::fp32};
  if (o.optimizer == OptimizerKind::adafactor)
    return {split ? StateLayout::split : StateLayout::fp32};
  if (o.optimizer == OptimizerKind::adamw8bit) {
    require_layout(StateLayout::int8, working);
    return {StateLayout::int8};
  }
  if (working == DType::f64) return {StateLayout::fp32};
  std::vector<StateLayout> all{split ? StateLayout::split : StateLayout::fp32, StateLayout::bf16m,
                               StateLayout::bf16mv};
  // An int8 scale covers 256 elements of a row, of which a shard may have only a part.
  if (o.tp == 1) all.push_back(StateLayout::int8);
  return all;
}

void require_known(const TrainOptions& o, StateLayout layout) {
  const auto refuse = [&](const char* why) {
    fail(fmt::format("--state-layout {} is AdamW's; --optimizer {} {}", name_of(layout),
                     name_in(optimizers, o.optimizer), why),
         ErrorKind::usage);
  };
  if (o.optimizer == OptimizerKind::sgd && layout != StateLayout::fp32)
    refuse("keeps its state in fp32");
  if (o.optimizer == OptimizerKind::adafactor && layout != StateLayout::fp32 &&
      layout != StateLayout::split)
    refuse("has no moments to narrow; use fp32 or split");
  if (o.optimizer == OptimizerKind::adamw8bit && layout != StateLayout::int8)
    fail(fmt::format("--optimizer adamw8bit is adamw with --state-layout int8, not {}",
                     name_of(layout)),
         ErrorKind::usage);
}

}  // namespace

std::vector<StatePrecision> precision_candidates(const TrainOptions& o, DType working) {
  std::vector<StateLayout> layouts;
  if (o.state_layout) {
    layouts = {*o.state_layout};
    require_layout(*o.state_layout, working);
    require_known(o, *o.state_layout);
  } else {
    layouts = layouts_of(o, working);
  }
  const bool narrow = o.gradients == DType::bf16;
  if (narrow && o.optimizer == OptimizerKind::sgd)
    fail("--gradients bf16: SGD updates from fp32 gradients; use --gradients fp32",
         ErrorKind::usage);
  if (narrow && working != DType::bf16)
    fail(fmt::format("--gradients bf16 needs --precision bf16, not {} weights", name_of(working)),
         ErrorKind::usage);
  std::vector<StatePrecision> forms;
  for (const StateLayout layout : layouts) {
    if (!narrow) forms.push_back({layout, false});
    if (o.gradients != DType::f32 && working == DType::bf16 && o.optimizer != OptimizerKind::sgd)
      forms.push_back({layout, true});
  }
  return forms;
}

}  // namespace sluice
