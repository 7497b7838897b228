#pragma once

#include "apps/plan/cost/cost_model.h"

namespace sluice {

/// Inputs of stages in a layer-major step, of all micro-batches together.
struct StashedInputs {
  double kept = 0;  ///< bytes; 0 if what backward needs is kept instead, and nothing is recomputed
  double resting = 0;  ///< those of them in host memory
};

/// Bytes and seconds of a layer-major step whose blocks' weights and gradients rest in host memory.
struct WeightStreaming {
  double to_device = 0;  ///< bytes a step of weights and inputs
  double to_host = 0;    ///< bytes a step of gradients and inputs
  double update = 0;     ///< seconds of the CPU's updates
  double stall = 0;      ///< seconds of copies and updates that no computation hides
};

/// The sum of a block's gradients over replicas.
struct BlockSum {
  double seconds = 0;
  bool overlap = true;  ///< runs under the first half of the next block's backward passes
};

/// Predicts one step of one rank. While a block computes all micro-batches, forward or backward,
/// the weights of the next one and inputs are copied, each direction at its rate. In the forward
/// pass the CPU's update of a block must end before its weights are copied: those of the lowest
/// block are exposed. Where a pass turns round, two blocks are still on the device. `work` is that
/// of all micro-batches of a replica, and cpu_state the bytes of state that the CPU updates. Those
/// of the embeddings come first, and nothing hides them; those of the head come last.
WeightStreaming predict_weight_streaming(const DecoderConfig& config, const MemoryChoice& choice,
                                         const StepWork& work, const StashedInputs& inputs,
                                         const DeviceProfile& profile,
                                         const BlockSum& summing = {});

}  // namespace sluice
