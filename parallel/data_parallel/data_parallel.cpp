#include "parallel/data_parallel/data_parallel.h"

#include <algorithm>

namespace sluice {

Tensor padded_scratch(const ParameterSpace& space, const BucketPlan& bucket_plan) {
  if (!space.options().zero()) return {};
  std::int64_t bytes = 0;
  for (const auto& bucket : bucket_plan.buckets()) {
    bytes = std::max(bytes, padded_bytes(bucket.parts, space.working().dtype()));
    for (const auto& gradients : bucket.gradients)
      bytes =
          std::max(bytes, padded_bytes(gradients.parts, space.gradients().dtype(gradients.narrow)));
  }
  const MemoryScope scope(*space.device(), MemoryUse::staging);
  return Tensor::zeros(space.device(), {bytes}, DType::u8);
}

}  // namespace sluice
