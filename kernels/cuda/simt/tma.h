#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::simt {

/// The emulated GPU's cuda::TensorMap: what it was made of.
struct TensorMap {
  const std::byte* address;
  std::int64_t sizes[4];
  std::int64_t strides[4];  ///< bytes
  unsigned box[4];
};

/// A box arrives at once, or at any time until nothing else can run; a seeded random choice
/// decides.
void tma_load(std::uintptr_t to, const TensorMap& map, const std::array<int, 4>& first,
              std::uintptr_t barrier);

}  // namespace sluice::simt
