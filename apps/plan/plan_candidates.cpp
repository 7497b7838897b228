#include "apps/plan/plan_candidates.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// Returns the layouts that the update rule supports, each narrower than the one before.
std::vector<StateLayout> layouts_of(const TrainConfig& o, DType working) {
  const bool split = working == DType::bf16;
  if (o.optimizer.kind == OptimizerKind::sgd) return {StateLayout::fp32};
  if (takes_whole_tensors(o.optimizer.kind))
    return {split ? StateLayout::split : StateLayout::fp32};
  if (o.optimizer.kind == OptimizerKind::adamw8bit) {
    require_layout(StateLayout::int8, working);
    return {StateLayout::int8};
  }
  if (working == DType::f64) return {StateLayout::fp32};
  std::vector<StateLayout> all{split ? StateLayout::split : StateLayout::fp32, StateLayout::bf16m,
                               StateLayout::bf16mv};
  // An int8 scale covers 256 elements of a row, of which a shard may have only a part.
  if (o.parallel.tp == 1) all.push_back(StateLayout::int8);
  return all;
}

}  // namespace

std::vector<StatePrecision> precision_candidates(const TrainConfig& o, DType working) {
  std::vector<StateLayout> layouts;
  if (o.memory.state_layout) {
    layouts = {*o.memory.state_layout};
    require_layout(*o.memory.state_layout, working);
  } else {
    layouts = layouts_of(o, working);
  }
  const bool narrow = o.memory.gradients == DType::bf16;
  std::vector<StatePrecision> forms;
  for (const StateLayout layout : layouts) {
    if (!narrow) forms.push_back({layout, false});
    if (o.memory.gradients != DType::f32 && working == DType::bf16 &&
        o.optimizer.kind != OptimizerKind::sgd)
      forms.push_back({layout, true});
  }
  return forms;
}

std::vector<std::int64_t> micro_batches(const TrainConfig& o, const RunSetup& setup, bool gpu) {
  if (o.batch.micro_batch || setup.pipeline) return {setup.trainer.micro_batch};
  const std::int64_t share = o.batch_share();
  // On the CPU it tries no larger micro-batches than the default: few sequences keep a CPU busy.
  const std::int64_t most = gpu ? share : setup.trainer.micro_batch;
  constexpr std::int64_t max_tokens = 1 << 16;
  std::vector<std::int64_t> sizes;
  for (std::int64_t rows = most; rows >= 1; --rows)
    if (share % rows == 0 && (rows == 1 || rows * setup.trainer.seq_len <= max_tokens) &&
        divides_tokens(o, rows, setup.trainer.seq_len))
      sizes.push_back(rows);
  if (sizes.empty()) sizes = {setup.trainer.micro_batch};
  return sizes;
}

std::vector<PlanEntry> plan_entries(bool gpu, bool inputs_on_host, bool recompute_given) {
  using enum Recompute;
  constexpr std::int64_t k = 1024, most = 64 * k;
  const Recompute block_far = inputs_on_host ? block_on_host : block;
  if (!gpu) {  // few tokens keep a CPU busy
    if (recompute_given) return {{none, 1, most}};
    return {{none, 1, most},
            {gelu, 1, most},
            {gelu_ln, 1, most},
            {block, 1, 1, true},
            {block, 1, most}};
  }
  if (recompute_given)
    return {{none, 8 * k, most},
            {none, 4 * k, 8 * k - 1},
            {none, 2 * k, 4 * k - 1},
            {none, 1, 2 * k - 1}};
  return {{none, 8 * k, most},         {gelu, 8 * k, most},
          {gelu_ln, 8 * k, most},      {none, 4 * k, 8 * k - 1},
          {gelu, 4 * k, 8 * k - 1},    {gelu_ln, 4 * k, 8 * k - 1},
          {none, 2 * k, 4 * k - 1},    {gelu_ln, 2 * k, 4 * k - 1},
          {gelu_ln, 1, 2 * k - 1},     {block, 4 * k, 8 * k - 1, true},
          {block, 1, 4 * k - 1, true}, {block_far, 4 * k, most},
          {block_far, 1, 4 * k - 1}};
}

std::vector<Staging> stagings(const TrainConfig& o, bool streams) {
  constexpr Staging smaller[] = {{}, {.places = 2}, {.chunk = std::int64_t{1} << 20, .places = 2}};
  std::vector<Staging> all;
  for (Staging staging : smaller) {
    staging.chunk = o.memory.stream_chunk.value_or(staging.chunk);
    staging.places = static_cast<int>(o.memory.staging_chunks.value_or(staging.places));
    if (std::ranges::find(all, staging) == all.end()) all.push_back(staging);
    if (!streams) break;
  }
  return all;
}

}  // namespace sluice
