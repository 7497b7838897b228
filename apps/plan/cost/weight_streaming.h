#pragma once

#include "apps/plan/cost/cost_model.h"

namespace sluice {

/// Bytes and seconds of a layer-major step whose blocks' weights and gradients rest in host memory.
struct WeightStreaming {
  double to_device = 0;  ///< bytes a step: weights twice, stashed inputs once
  double to_host = 0;    ///< bytes a step: stashed inputs and gradients
  double update = 0;     ///< seconds of the CPU's updates
  double stall = 0;      ///< seconds of copies and updates that no computation hides
};

/// Predicts one step of one rank. While a block computes all micro-batches, forward or backward,
/// the weights of the next one and inputs are copied, each direction at its rate. In the forward
/// pass the CPU's update of a block must end before its weights are copied: those of the lowest
/// block are exposed. `work` is that of all micro-batches, and cpu_state the bytes of state that
/// the CPU updates. The inputs of stages rest in host memory too.
WeightStreaming predict_weight_streaming(const DecoderConfig& config, const MemoryChoice& choice,
                                         const StepWork& work, const DeviceProfile& profile);

}  // namespace sluice
