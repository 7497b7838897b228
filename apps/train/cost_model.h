#pragma once

#include <cstdint>

#include "apps/train/device_profile.h"
#include "apps/train/interconnect.h"
#include "apps/train/memory_choice.h"
#include "models/gpt2/gpt2.h"

namespace sluice {

/// Seconds of one update and what they go to.
struct StepTime {
  double forward = 0;
  double backward = 0;
  double recompute = 0;
  double update = 0;  ///< of state on the device
  double stall = 0;   ///< waiting for copies and for the CPU's updates, where nothing hides them
  double tensor = 0;  ///< waiting for the other ranks that divide the matrices
  std::uint64_t bytes_each_way = 0;  ///< of the busier direction

  double total() const { return forward + backward + recompute + update + stall + tensor; }
};

struct StepWork {
  std::int64_t batch = 1;
  std::int64_t seq_len = 1;
  DType dtype = DType::f32;
  double resident_state = 0;  ///< bytes
  double streamed_state = 0;  ///< bytes that rest on the host and visit the device
  double cpu_state = 0;       ///< bytes that the CPU updates there
  double share = 1;           ///< of all updates, where ranks divide them (ZeRO-1)
  Shards shards{};
};

/// Predicts a step: matrix products at the profile's rate, less for batches that do not fill the
/// device; passes over memory at its rate; streamed state hides under one micro-batch's forward
/// pass, since clipping by the norm of all gradients lets no update start earlier, but for what is
/// speculative and hides under the last backward pass (no step is taken back); and what the CPU
/// updates under as much of the forward pass as comes before those blocks.
///
/// Of ranks that divide the matrices (Shoeybi et al., 2019) it is the first one, which has most
/// heads: the products are shares, and a product of so many times fewer columns fills the device
/// as one of so many times fewer rows. Sums over the ranks are waited for forward, and so is that
/// of the head; those of backward hide under half of the weight gradient's product beside them,
/// which is assumed: the other half of the device is left to the reduction.
StepTime predict_step(const GPT2Config& config, const MemoryChoice& choice, const StepWork& work,
                      const DeviceProfile& profile);

/// Seconds of one micro-batch in a part of the model, the head included where it is the last one.
struct PartTime {
  double forward = 0;
  double backward = 0;  ///< with what is computed again
  /// Of the two, waiting for the other ranks that divide the matrices.
  double forward_tensor = 0, backward_tensor = 0;
};

PartTime predict_part(const GPT2Config& config, const GPT2Part& part, const MemoryChoice& choice,
                      const StepWork& work, const DeviceProfile& profile);

/// What the first of so many ranks that divide the matrices has of the model: the most of all.
std::int64_t parameters_of_shard(const GPT2Config& config, std::int64_t ranks);

}  // namespace sluice
