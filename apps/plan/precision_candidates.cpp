#include "apps/plan/precision_candidates.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// Returns the layouts that the update rule supports, each narrower than the one before.
std::vector<StateLayout> layouts_of(const TrainOptions& o, DType working) {
  const bool split = working == DType::bf16;
  if (o.optimizer == "sgd") return {StateLayout::fp32};
  if (o.optimizer == "adafactor") return {split ? StateLayout::split : StateLayout::fp32};
  if (o.optimizer == "adamw8bit") return {parse_state_layout("int8", working)};
  if (working == DType::f64) return {StateLayout::fp32};
  std::vector<StateLayout> all{split ? StateLayout::split : StateLayout::fp32, StateLayout::bf16m,
                               StateLayout::bf16mv};
  // The scales of int8 are those of whole rows.
  if (o.tp == 1) all.push_back(StateLayout::int8);
  return all;
}

void require_known(const TrainOptions& o, StateLayout layout) {
  const auto refuse = [&](const char* why) {
    fail(fmt::format("--state-layout {} is AdamW's; --optimizer {} {}", o.state_layout, o.optimizer,
                     why),
         ErrorKind::usage);
  };
  if (o.optimizer == "sgd" && layout != StateLayout::fp32) refuse("keeps its state in fp32");
  if (o.optimizer == "adafactor" && layout != StateLayout::fp32 && layout != StateLayout::split)
    refuse("has no moments to narrow; use fp32 or split");
  if (o.optimizer == "adamw8bit" && layout != StateLayout::int8)
    fail(fmt::format("--optimizer adamw8bit is adamw with --state-layout int8, not {}",
                     o.state_layout),
         ErrorKind::usage);
}

}  // namespace

std::vector<StatePrecision> precision_candidates(const TrainOptions& o, DType working) {
  std::vector<StateLayout> layouts;
  if (o.state_layout != "auto") {
    layouts = {parse_state_layout(o.state_layout, working)};
    require_known(o, layouts[0]);
  } else {
    layouts = layouts_of(o, working);
  }
  if (o.gradients == "bf16" && o.optimizer == "sgd")
    fail("--gradients bf16: SGD updates from fp32 gradients; use --gradients fp32",
         ErrorKind::usage);
  if (o.gradients == "bf16" && working != DType::bf16)
    fail(fmt::format("--gradients bf16 needs --precision bf16, not {} weights", name_of(working)),
         ErrorKind::usage);
  std::vector<StatePrecision> forms;
  for (const StateLayout layout : layouts) {
    if (o.gradients != "bf16") forms.push_back({layout, false});
    if (o.gradients != "fp32" && working == DType::bf16 && o.optimizer != "sgd")
      forms.push_back({layout, true});
  }
  return forms;
}

}  // namespace sluice
