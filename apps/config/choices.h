#pragma once

#include <cstdint>
#include <string>

#include "apps/checkpoint/checkpoint_config.h"
#include "apps/cli/choice.h"
#include "apps/cli/machine.h"
#include "apps/cli/sizes.h"
#include "apps/data/tokens/sampler.h"
#include "engine/ops/linear/mlp.h"
#include "kernels/base/dtype.h"
#include "optim/optimizer_config.h"
#include "optim/space/state_layout.h"
#include "parallel/parallel_config.h"

namespace sluice {

// The values of train_gpt2's flags that take one of several words, with these words.

inline constexpr Choices<OptimizerKind, 5> optimizers{{{"adamw", OptimizerKind::adamw},
                                                       {"adamw8bit", OptimizerKind::adamw8bit},
                                                       {"adafactor", OptimizerKind::adafactor},
                                                       {"muon", OptimizerKind::muon},
                                                       {"sgd", OptimizerKind::sgd}}};

inline constexpr Choices<AttentionKernel, 2> attention_kernels{
    {{"mma", AttentionKernel::mma}, {"tma", AttentionKernel::tma}}};

inline constexpr Choices<GpuExchange, 2> communications{
    {{"nccl", GpuExchange::nccl}, {"staged", GpuExchange::staged}}};

inline constexpr Choices<Saving, 3> savings{
    {{"wait", Saving::wait}, {"background", Saving::background}, {"never", Saving::never}}};

inline constexpr Choices<SequenceSampler::Order, 2> data_orders{
    {{"shuffled", SequenceSampler::Order::shuffled},
     {"sequential", SequenceSampler::Order::sequential}}};
inline constexpr Choices<ScheduleKind, 3> rate_schedules{{{"constant", ScheduleKind::constant},
                                                          {"cosine", ScheduleKind::cosine},
                                                          {"linear", ScheduleKind::linear}}};
inline constexpr Choices<StateLayout, 5> state_layouts{
    {{name_of(StateLayout::fp32), StateLayout::fp32},
     {name_of(StateLayout::split), StateLayout::split},
     {name_of(StateLayout::bf16m), StateLayout::bf16m},
     {name_of(StateLayout::bf16mv), StateLayout::bf16mv},
     {name_of(StateLayout::int8), StateLayout::int8}}};
inline constexpr Choices<DType, 2> gradient_types{{{"fp32", DType::f32}, {"bf16", DType::bf16}}};
inline constexpr Choices<Stash, 2> stashes{{{"graph", Stash::graph}, {"input", Stash::input}}};
inline constexpr Choices<ScheduleName, 6> pipelines{
    {{"gpipe", ScheduleName::gpipe},
     {"1f1b", ScheduleName::one_forward_one_backward},
     {"interleaved", ScheduleName::interleaved},
     {"layer-split", ScheduleName::layer_split},
     {"zb-h1", ScheduleName::zero_bubble_h1},
     {"layer-major", ScheduleName::layer_major}}};

inline std::string to_string(const PipelineSchedule& schedule) {
  if (!schedule.file.empty()) return schedule.file;
  const std::string name(name_in(pipelines, schedule.name));
  return schedule.virtual_stages > 1 ? name + "*" + std::to_string(schedule.virtual_stages) : name;
}

/// Returns --stash; "" for the default.
inline std::string stash_text(const ParallelConfig& o) {
  if (!o.stash) return "";
  const std::string kind(name_in(stashes, *o.stash));
  return o.max_stash ? kind + ":" + spell_bytes(*o.max_stash) : kind;
}

}  // namespace sluice
