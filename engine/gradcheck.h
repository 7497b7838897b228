#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

struct GradcheckOptions {
  double tolerance = 1e-8;  ///< absolute, on every element of every gradient
  double step = 1e-5;
  std::size_t samples = 200;   ///< elements of a leaf that are perturbed; all if fewer
  bool unit_upstream = false;  ///< start from gradient 1 (a loss), not from random weights
};

using TensorFunction = std::function<Tensor(const std::vector<Tensor>&)>;

/// Compares the gradients that backward() leaves in `leaves` (f64) with central differences of a
/// weighted sum of the outputs. Returns the differences, leaf by leaf; empty if all agree.
std::string gradcheck(const TensorFunction& function, std::vector<Tensor> leaves,
                      const GradcheckOptions& options = {});

}  // namespace sluice
