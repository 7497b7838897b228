#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/plan/cost/cost_model.h"

namespace sluice {

/// The bytes that a data-parallel step communicates, independent of the number of ranks.
struct Traffic {
  double wide_gradients = 0;    ///< summed in f32
  double narrow_gradients = 0;  ///< summed in bf16
  /// The gradients among these that lie in places under ZeRO-2 (GradientBuffers), and the number of
  /// sections that share the places.
  double wide_in_places = 0, narrow_in_places = 0;
  std::int64_t sections = 0;
  double weights = 0;     ///< working weights; only ZeRO sends them
  double bucket = 1;      ///< most bytes that one operation moves
  std::int64_t zero = 0;  ///< 1, 2: ZeRO-1, ZeRO-2
  bool overlap = true;    ///< communication runs beside computation
};

Traffic traffic_of(const std::vector<Parameter>& parameters, const MemoryChoice& choice,
                   DType working);
Traffic traffic_of(const DecoderConfig& config, const MemoryChoice& choice, DType working);
/// The same, sent as the flags say (--zero, --overlap, --bucket-size). `gpu`: of a run on a GPU.
Traffic traffic_of(const std::vector<Parameter>& parameters, const MemoryChoice& choice,
                   DType working, const ParallelConfig& parallel, bool gpu);

/// Seconds of computation that can hide communication.
struct Cover {
  double backward = 0;  ///< of the last micro-batch; no gradient is complete earlier
  double forward = 0;   ///< of the first micro-batch; each block waits for its weights
};

struct Communication {
  double gradient_bytes = 0, weight_bytes = 0;  ///< sent by each rank
  std::int64_t messages = 0;                    ///< sent by each rank
  double gradient_seconds = 0, weight_seconds = 0;
  double exposed = 0;  ///< seconds that no computation hides

  double bytes() const { return gradient_bytes + weight_bytes; }
  double seconds() const { return gradient_seconds + weight_seconds; }
};

/// Cost of a step's collectives in the alpha-beta model, n bytes among N ranks over a link of
/// latency a and bandwidth B:
///   reduce-scatter, all-gather  (N-1) a + (N-1)/N n/B each
///   all-reduce                  one after the other: 2 (N-1) a + 2 (N-1)/N n/B
/// These are the costs of the ring all-gather and of the pairwise exchange reduce-scatter in
/// Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005.
/// A direct exchange, in which every rank sends every other rank its part, costs the same as a
/// ring. Both send the fewest bytes; a tree would have log2(N) latencies instead of N-1. The model
/// leaves out the arithmetic of the sums. Every bucket pays its own latencies. No computation hides
/// the last bucket of gradients and the first bucket of weights.
///
/// Under ZeRO-2 a step reduces the gradients in places `reductions` times, unless they are of one
/// section, in buckets that end at sections. A backward pass of cover.backward seconds hides them
/// each time.
Communication predict_communication(const Traffic& traffic, std::int64_t ranks, const Link& link,
                                    const Cover& cover, std::int64_t reductions);

/// Inputs of a prediction for many data-parallel ranks.
struct ScalingTask {
  DecoderConfig config;
  MemoryChoice choice;
  StepWork work;     ///< of one rank of one replica; its batch is ignored
  double state = 0;  ///< bytes of all optimizer state and master weights
  DeviceProfile profile;
  Interconnect interconnect;
  Traffic traffic;
};

struct RanksTime {
  StepTime compute;  ///< of each rank
  Communication communication;
  double seconds = 0;  ///< of a step
  double tokens_per_second = 0;
};

/// Predicts a step of `ranks` replicas, each rank on its own device, with `batch` sequences each.
RanksTime predict_ranks(const ScalingTask& task, std::int64_t ranks, std::int64_t batch);

struct ScalingRow {
  std::int64_t ranks = 1;
  RanksTime weak;         ///< weak scaling: the batch of each rank is constant
  double efficiency = 1;  ///< tokens per second, as a fraction of `ranks` times one rank's
  double state = 0;       ///< bytes of state on each rank

  /// Strong scaling: the same global batch, divided. None if it does not divide evenly.
  struct Strong {
    std::int64_t batch = 1;  ///< of each rank
    RanksTime time;
    double speed_up = 1;  ///< over one rank that computes the whole batch
  };
  std::optional<Strong> strong{};
};

/// `rank_batch` is per rank (weak columns), `global_batch` is of all ranks (strong columns).
ScalingRow predict_row(const ScalingTask& task, std::int64_t ranks, std::int64_t rank_batch,
                       std::int64_t global_batch);

/// Returns 1, 2, 4, ... up to 4096 or the first power of two not below `given`; and `given`.
std::vector<std::int64_t> rank_counts(std::int64_t given);

}  // namespace sluice
