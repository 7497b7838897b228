#pragma once

#include <functional>
#include <vector>

#include "engine/offload/host_stack.h"
#include "engine/tensor.h"

namespace sluice {

using CheckpointFunction = std::function<std::vector<Tensor>(std::vector<Tensor>)>;

/// Activation checkpointing: computes function(inputs) and keeps only the inputs for backward (Chen
/// et al., "Training deep nets with sublinear memory cost", 2016). backward() calls the function
/// again with recording and continues through the new graph. The function must do the same in both
/// calls. It may move from its inputs to release them early. Inputs may be none; outputs may not.
///
/// `leaves`: the parameters that the function uses besides its inputs; using any other is an Error.
/// They may be used elsewhere too. Gradients have the same bits as without a checkpoint, except
/// that the order may differ if three or more steps add to one gradient and none of them depends on
/// another.
///
/// `host`: memory for offloaded inputs; those that are results of other ops are moved there.
/// Checkpoints must then run backward in the reverse of their forward order.
std::vector<Tensor> checkpoint(std::vector<Tensor> inputs, const std::vector<Tensor>& leaves,
                               CheckpointFunction function, HostStack* host = nullptr);

}  // namespace sluice
