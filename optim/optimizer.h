#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "optim/parameter_space.h"

namespace sluice {

/// One number per element of the parameter space that an optimizer carries from step to step.
struct OptimizerState {
  std::string_view name;  ///< "first_moment"; part of checkpoint names
  Tensor tensor;          ///< [space.size()]
};

/// Updates the master weights of a ParameterSpace from its gradients, and derives the working
/// weights in the same pass.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::string_view name() const = 0;
  /// One update. Gradients are multiplied by `gradient_scale` (clipping, loss scaling), one element
  /// on their device; where it is not finite, nothing but the count of updates changes.
  virtual void step(double rate, const Tensor& gradient_scale = {}) = 0;
  /// Takes the last step's count back: its scale was not finite.
  void retract() { --updates_; }
  virtual std::vector<OptimizerState> state() const = 0;

  /// Updates done so far; set when resuming.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 protected:
  std::int64_t updates_ = 0;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
};
std::unique_ptr<Optimizer> make_adamw(ParameterSpace& space, const AdamWOptions& options);

struct SgdOptions {
  double momentum = 0.9;
  double weight_decay = 0;
};
std::unique_ptr<Optimizer> make_sgd(ParameterSpace& space, const SgdOptions& options);

}  // namespace sluice
