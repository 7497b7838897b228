#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/train/cost_model.h"

namespace sluice {

/// What a data-parallel step has to move, in bytes, however many ranks there are.
struct Traffic {
  double wide_gradients = 0;    ///< summed in f32
  double narrow_gradients = 0;  ///< summed in bf16
  double weights = 0;           ///< what the model computes with; only ZeRO-1 sends them
  double bucket = 1;            ///< the most that one operation moves
  bool zero = false;            ///< ZeRO-1
  bool overlap = true;          ///< beside computing
};

Traffic traffic_of(const std::vector<Parameter>& parameters, const MemoryChoice& choice,
                   DType working);
Traffic traffic_of(const GPT2Config& config, const MemoryChoice& choice, DType working);

/// Seconds of computing that communication can hide under.
struct Cover {
  double backward = 0;  ///< of the last micro-batch, before which no gradient is finished
  double forward = 0;   ///< of the first one, block by block behind its weights
};

struct Communication {
  double gradient_bytes = 0, weight_bytes = 0;  ///< sent by each rank
  std::int64_t messages = 0;                    ///< sent by each rank
  double gradient_seconds = 0, weight_seconds = 0;
  double exposed = 0;  ///< seconds that nothing hides

  double bytes() const { return gradient_bytes + weight_bytes; }
  double seconds() const { return gradient_seconds + weight_seconds; }
};

/// Cost of a step's collectives in the alpha-beta model, n bytes among N ranks over a link of
/// latency a and bandwidth B:
///   reduce-scatter, all-gather  (N-1) a + (N-1)/N n/B each
///   all-reduce                  one after the other: 2 (N-1) a + 2 (N-1)/N n/B
/// These are the costs of the ring all-gather and of the pairwise exchange reduce-scatter in
/// Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005.
/// A ring costs that, and so does a direct exchange, in which every rank sends each other one its
/// part. Both send the fewest bytes; trees would pay a latency log2(N) times instead of N-1. The
/// arithmetic of the sums is left out. Every bucket pays its own latencies; of gradients the last
/// bucket, of weights the first, has nothing to hide under.
Communication predict_communication(const Traffic& traffic, std::int64_t ranks, const Link& link,
                                    const Cover& cover);

/// Everything that a step of many ranks follows from.
struct ScalingTask {
  GPT2Config config;
  MemoryChoice choice;
  StepWork work;     ///< of a rank of one replica; its batch is not looked at
  double state = 0;  ///< bytes of optimizer state and master weights, all of it
  DeviceProfile profile;
  Interconnect interconnect;
  Traffic traffic;
};

struct RanksTime {
  StepTime compute;  ///< of each rank
  Communication communication;
  double seconds = 0;  ///< a step
  double tokens_per_second = 0;
};

/// A step of `ranks` replicas, every rank on a device of its own, with `batch` sequences for each.
RanksTime predict_ranks(const ScalingTask& task, std::int64_t ranks, std::int64_t batch);

struct ScalingRow {
  std::int64_t ranks = 1;
  RanksTime weak;         ///< every rank has the same batch, whatever their number
  double efficiency = 1;  ///< tokens per second, as a share of `ranks` times one rank's
  double state = 0;       ///< bytes for each rank

  /// The same global batch, divided; none where it does not divide.
  struct Strong {
    std::int64_t batch = 1;  ///< of each rank
    RanksTime time;
    double speed_up = 1;  ///< over one rank that does all of it
  };
  std::optional<Strong> strong{};
};

/// `rank_batch` is each rank's in the weak columns, `global_batch` all ranks' in the strong ones.
ScalingRow predict_row(const ScalingTask& task, std::int64_t ranks, std::int64_t rank_batch,
                       std::int64_t global_batch);

/// 1, 2, 4, ... up to 4096, or to the first power of two that is not below `given`; and `given`.
std::vector<std::int64_t> rank_counts(std::int64_t given);

}  // namespace sluice
