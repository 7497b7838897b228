#include "parallel/data_parallel/data_parallel.h"

#include <algorithm>

namespace sluice {

Tensor padded_scratch(const ParameterSpace& space, const BucketPlan& bucket_plan) {
  if (!space.options().zero()) return {};
  const auto bytes_of = [](std::int64_t elements, DType dtype) {
    return elements * static_cast<std::int64_t>(size_of(dtype));
  };
  const auto& [weights, wide, narrow] = bucket_plan.padded();
  const std::int64_t bytes = std::max({bytes_of(weights, space.working().dtype()),
                                       bytes_of(wide, space.gradients().dtype(false)),
                                       bytes_of(narrow, space.gradients().dtype(true))});
  const MemoryScope scope(*space.device(), MemoryUse::staging);
  return Tensor::zeros(space.device(), {bytes}, DType::u8);
}

}  // namespace sluice
