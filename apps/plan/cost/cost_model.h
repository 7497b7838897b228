#pragma once

#include <cstdint>

#include "apps/plan/cost/device_profile.h"
#include "apps/plan/cost/interconnect.h"
#include "apps/train/memory_choice.h"
#include "models/decoder/decoder.h"

namespace sluice {

/// Predicted seconds of one update, split by cause.
struct StepTime {
  double forward = 0;
  double backward = 0;
  double recompute = 0;
  double update = 0;  ///< update of state on the device
  double stall = 0;   ///< waits for copies and for the CPU's updates that no computation hides
  double tensor = 0;  ///< exposed wait for the other tensor-parallel ranks
  std::uint64_t bytes_each_way = 0;  ///< bytes copied in the busier direction

  double total() const { return forward + backward + recompute + update + stall + tensor; }
};

/// Bytes per second that an NVMe disk is assumed to read, and to write at the same time.
constexpr double disk_rate = 1.5e9;

struct StepWork {
  std::int64_t batch = 1;  ///< sequences per update of one replica
  std::int64_t seq_len = 1;
  DType dtype = DType::f32;
  double resident_state = 0;  ///< bytes of state on the device
  double streamed_state = 0;  ///< bytes of state on the host that visit the device
  double cpu_state = 0;       ///< bytes of state that the CPU updates beside a GPU
  double table_moments = 8;   ///< bytes of moments for an element of a table
  double file_state = 0;      ///< bytes of any of these that rest in a file
  double share = 1;           ///< this rank's fraction of all updates (ZeRO-1)
  Shards shards{};
  bool dropout = false;
  bool orthogonalizes = false;   ///< the update rule is Muon
  bool splits_backward = false;  ///< weights' gradients come later, so they hide no sum over shards
};

/// Predicts a step from the times of its passes (pass_times.h). Updates and sums of gradients run
/// at the memory's rate. Copies of streamed state are hidden by the forward pass of one
/// micro-batch: clipping by the global gradient norm lets no update start earlier. Speculative
/// updates are hidden by the last backward pass; none is assumed to be undone. The CPU's updates
/// are hidden by the part of the forward pass before their blocks. So are reads of state from a
/// file; writes go on behind them.
///
/// With tensor parallelism (Shoeybi et al., 2019) it predicts shard 0, which has the most heads. A
/// product with N times fewer columns fills the device like one with N times fewer rows.
/// All-reduces in the forward pass and in the head are exposed. An all-reduce in the backward pass
/// is assumed to be hidden by half of the weight gradient's product that runs beside it; the other
/// half of the device does the reduction.
StepTime predict_step(const DecoderConfig& config, const MemoryChoice& choice, const StepWork& work,
                      const DeviceProfile& profile);

/// Predicted seconds of one micro-batch in a part of the model; the last part includes the head.
struct PartTime {
  double forward = 0;
  double backward = 0;  ///< including recompute
  double weights = 0;   ///< part of `backward` for the gradients of the blocks' weights
  /// Parts of `forward` and `backward` spent waiting for the other tensor-parallel ranks.
  double forward_tensor = 0, backward_tensor = 0;
};

PartTime predict_part(const DecoderConfig& config, const DecoderPart& part,
                      const MemoryChoice& choice, const StepWork& work,
                      const DeviceProfile& profile);

/// Returns the number of parameters on shard 0 of `ranks` tensor-parallel ranks. No other shard has
/// more. With adapters these are not counted.
std::int64_t parameters_of_shard(const DecoderConfig& config, std::int64_t ranks);
/// The same for those that are trained: adapters, or all.
double trained_parameters(const DecoderConfig& config, std::int64_t ranks);

}  // namespace sluice
