#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/ops/linear/linear_cross_entropy.h"
#include "models/decoder/recompute.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// The device buffers through which optimizer state streams.
struct Staging {
  std::int64_t chunk = std::int64_t{4} << 20;  ///< parameters per chunk, which is copied as a whole
  int places = 4;                              ///< chunks that may be in flight at a time

  bool operator==(const Staging&) const = default;
};

/// Everything besides the model and the batch that decides how much memory a training takes.
struct MemoryChoice {
  std::int64_t micro_batch = 1;                                 ///< sequences computed at a time
  std::int64_t head_chunk = LinearCrossEntropyOptions().chunk;  ///< tokens
  std::vector<Recompute> recompute{};                           ///< by layer
  StateLayout layout = StateLayout::fp32;
  bool narrow_gradients = false;     ///< accumulates the blocks' matrix gradients in bf16
  std::int64_t resident_blocks = 0;  ///< lowest blocks, whose state stays on the device
  std::int64_t cpu_blocks = 0;       ///< highest blocks, whose state the CPU updates in host memory
  /// Blocks above these, whose weights and gradients rest in host memory too (Residency::host).
  std::int64_t host_blocks = 0;
  bool cpu_tables = false;  ///< the CPU updates the state of embeddings and head in host memory
  /// How many of the highest streamed blocks are updated speculatively, during the backward pass.
  std::int64_t speculative_blocks = 0;
  Staging staging{};

  /// Returns true if any block's input is kept in host memory until the backward pass.
  bool rests_inputs() const {
    return std::ranges::find(recompute, Recompute::block_on_host) != recompute.end();
  }
  std::int64_t streamed_blocks() const {
    return static_cast<std::int64_t>(recompute.size()) - resident_blocks - cpu_blocks - host_blocks;
  }
  /// Bytes per element of the blocks' matrix gradients.
  double gradient_bytes() const { return narrow_gradients ? 2 : 4; }
  /// Returns true if state rests in host memory of blocks whose weights do not.
  bool streams() const {
    return resident_blocks + host_blocks < static_cast<std::int64_t>(recompute.size());
  }
};

/// Returns the number of chunks in which the vocabulary head computes a micro-batch's logits.
inline std::int64_t head_chunks(const MemoryChoice& choice, std::int64_t tokens) {
  return (tokens + choice.head_chunk - 1) / choice.head_chunk;
}

/// Returns, for each layer, where the state of its matrices is kept.
std::vector<Residency> residency_of(const MemoryChoice& choice);

/// Returns the choice as flags of train_gpt2.
std::string to_flags(const MemoryChoice& choice);

}  // namespace sluice
