#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Stochastic gradient descent with momentum and decoupled weight decay:
///   velocity = momentum * velocity + gradient_scale * grad
///   w -= rate * (velocity + weight_decay * w)
/// master, velocity, grad: [n], f32 (or all f64). `working` and `gradient_scale` as in AdamW.
struct Sgd {
  View master;
  View velocity;
  View grad;
  View working{};
  View gradient_scale{};
  double rate = 0;
  double momentum = 0;
  double weight_decay = 0;
};
void launch_cpu(const Sgd& op);
void launch_cuda(const Sgd& op, Stream stream);

}  // namespace sluice
