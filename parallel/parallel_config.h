#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "parallel/comm/device_backend.h"
#include "parallel/comm/mesh.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/schedule.h"

namespace sluice {

/// A pipeline's schedule: one by name, or a CSV file with the actions of each rank.
struct PipelineSchedule {
  ScheduleName name = ScheduleName::one_forward_one_backward;
  std::string file{};               ///< empty: by name
  std::int64_t virtual_stages = 1;  ///< stages on each rank, for `interleaved`

  bool is(ScheduleName other) const { return file.empty() && name == other; }
};

/// How ranks divide a training and exchange data, as a user asks for it. None: a default that
/// depends on other settings.
struct ParallelConfig {
  std::optional<std::int64_t> dp;  ///< replicas; none: all ranks that `pp` and `tp` leave
  std::int64_t pp = 1, tp = 1;     ///< pipeline stages' ranks; ranks that divide matrices
  std::int64_t zero = 0;           ///< 1: replicas divide the optimizer state; 2: gradients too
  bool sequence_parallel = false;  ///< ranks of `tp` divide the tokens too

  std::optional<PipelineSchedule> pipeline;  ///< none: no pipeline unless `pp` > 1, then 1f1b
  std::string split = "blocks";              ///< see parse_block_split()
  std::optional<Stash> stash;                ///< none: the input if layer-major, else the graph
  std::optional<std::size_t> max_stash;      ///< bytes of inputs that a rank keeps on the GPU

  std::optional<std::size_t> bucket_size;  ///< bytes of gradients that are reduced at a time
  std::optional<GpuExchange> communication;
  bool overlap = true;              ///< reduces gradients while backward goes on
  bool checked = true;              ///< compares the ranks' operations with each other
  double collective_timeout = 120;  ///< seconds
  std::string rank_files;           ///< folder for the ranks' records; empty: a temporary one
  std::string inject;               ///< a fault, as parse_injection() reads it

  /// A single process runs as a pipeline of one rank if `pipeline` asks for it.
  bool pipelined() const { return pp > 1 || pipeline; }
  /// The schedule of a run with a pipeline.
  PipelineSchedule schedule() const { return pipeline.value_or(PipelineSchedule()); }
  bool layer_major() const { return pipeline && pipeline->is(ScheduleName::layer_major); }
  /// True if replicas divide the optimizer state.
  bool divides_state() const { return zero > 0 && dp.value_or(1) > 1; }
  Stash stashed() const { return stash.value_or(layer_major() ? Stash::input : Stash::graph); }

  /// Returns the mesh of ranks that is described, whether or not these ranks exist.
  Mesh mesh() const {
    return {.dp = static_cast<int>(dp.value_or(1)),
            .pp = static_cast<int>(pp),
            .tp = static_cast<int>(tp)};
  }
  /// Returns `bucket_size` in bytes; by default 25 MiB with GPUs, so that a bucket takes longer
  /// than its latency, else 4 MiB. On the host, reductions take scratch memory of 4 (N-1)/N buckets
  /// for N ranks.
  std::size_t bucket_bytes(bool gpu) const {
    return bucket_size.value_or(std::size_t{gpu ? 25u : 4u} << 20);
  }
  /// Returns the settings of a single process with all of the model.
  ParallelConfig alone() const;
};

inline ParallelConfig ParallelConfig::alone() const {
  const ParallelConfig usual;
  ParallelConfig one = *this;
  one.dp = one.pp = one.tp = 1;
  one.zero = 0;
  one.sequence_parallel = usual.sequence_parallel;
  one.pipeline = usual.pipeline;
  one.split = usual.split;
  one.stash = usual.stash;
  one.max_stash = usual.max_stash;
  return one;
}

}  // namespace sluice
