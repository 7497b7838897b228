#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

/// Keys and values of all positions so far, for generation.
struct KeyValueCache {
  struct Layer {
    Tensor keys;    ///< [B, capacity, n_embd]
    Tensor values;  ///< likewise
  };
  std::vector<Layer> layers;
  std::int64_t length = 0;  ///< positions filled
};

}  // namespace sluice
