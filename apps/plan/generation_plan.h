#pragma once

#include <cstddef>
#include <cstdint>

#include "models/decoder/config.h"
#include "models/decoder/generate.h"

namespace sluice {

/// A text that is to be generated on a GPU.
struct GenerationTask {
  const DecoderConfig& config;
  DType dtype;
  std::size_t prompt;  ///< tokens
  const Generation& options;
  std::size_t workspace;    ///< bytes that the GPU's kernels request
  std::size_t at_once = 1;  ///< texts, all with as long a prompt; see generate_many()
};

/// The memory that it takes, counted by generating on the device `meta`.
struct GenerationPlan {
  std::int64_t host_blocks = 0;  ///< highest blocks, whose weights rest in host memory
  std::size_t device = 0;        ///< bytes that the GPU must provide
  std::size_t host = 0;          ///< bytes of pinned host memory
  /// Bytes of weights that are copied to the GPU for each token of all texts. The two buffers on
  /// the GPU may still hold a block from the token before.
  std::uint64_t copied_per_token = 0;
};

/// Returns the plan with the fewest blocks in host memory that takes at most `allowed` bytes of the
/// GPU. Throws Error (usage), with the bytes that are missing, if there is none.
GenerationPlan plan_generation(const GenerationTask& task, std::size_t allowed);

}  // namespace sluice
