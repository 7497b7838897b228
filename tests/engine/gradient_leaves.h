#pragma once

#include "engine/tensor.h"
#include "tests/support/gradcheck.h"

namespace sluice::test {

/// The inputs of a function whose gradients are tested, in f64.
using Leaves = std::vector<Tensor>;

inline DevicePtr device() {
  return make_cpu_device(std::size_t{256} << 20);
}

inline Tensor random_tensor(const DevicePtr& on, const Shape& shape, std::uint64_t seed,
                            double scale = 1) {
  return Tensor::from_host(on, shape, DType::f64, random_values(element_count(shape), seed, scale));
}

}  // namespace sluice::test
