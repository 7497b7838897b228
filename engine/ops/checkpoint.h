#pragma once

#include <functional>
#include <vector>

#include "engine/host_stack.h"
#include "engine/tensor.h"

namespace sluice {

using CheckpointFunction = std::function<std::vector<Tensor>(std::vector<Tensor>)>;

/// function(inputs), of whose graph nothing is kept but the inputs (Chen et al., "Training deep
/// nets with sublinear memory cost", 2016): backward() calls it again, with recording, and goes on
/// with what it recorded. It must do the same in both calls; it may move its inputs on, so that
/// they are released as soon as they have served. An input may be none, an output may not.
///
/// `leaves` are those that the function computes with beside its inputs; it is refused with any
/// other. They may be used outside of it too. Gradients have the bits that they have without a
/// checkpoint, except that three steps or more that add to one gradient, and of which none waits
/// for another, may do so in another order.
///
/// With `host` inputs that are results rest there; then checkpoints must run backward in the
/// reverse of the order in which they ran forward.
std::vector<Tensor> checkpoint(std::vector<Tensor> inputs, const std::vector<Tensor>& leaves,
                               CheckpointFunction function, HostStack* host = nullptr);

}  // namespace sluice
