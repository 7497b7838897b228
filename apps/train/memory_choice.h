#pragma once

#include <cstdint>
#include <string>

#include "engine/ops/linear/linear_cross_entropy.h"
#include "models/decoder/placement.h"

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
  ModelPlacement placement{};
  StateLayout layout = StateLayout::fp32;
  bool narrow_gradients = false;  ///< accumulates the blocks' matrix gradients in bf16
  Staging staging{};

  std::int64_t count(Residency residency) const { return placement.count(residency); }
  std::int64_t layers() const { return static_cast<std::int64_t>(placement.blocks.size()); }
  /// Returns the blocks whose state is copied to the device for its update.
  std::int64_t streamed_blocks() const {
    return count(Residency::streamed) + count(Residency::speculative);
  }
  /// Returns true if any block's input is kept in host memory until the backward pass.
  bool offloads_inputs() const { return placement.count(Recompute::block_on_host) > 0; }
  bool offloads_weights() const { return count(Residency::host) > 0; }
  /// Returns true if state is in host memory of blocks whose weights are not.
  bool offloads_state() const { return streamed_blocks() + count(Residency::cpu) > 0; }
  /// Bytes per element of the blocks' matrix gradients.
  double gradient_bytes() const { return narrow_gradients ? 2 : 4; }
};

/// Returns the choice with blocks that keep all activations.
MemoryChoice without_recompute(MemoryChoice choice);

/// Returns the number of chunks in which the vocabulary head computes a micro-batch's logits.
inline std::int64_t head_chunks(const MemoryChoice& choice, std::int64_t tokens) {
  return (tokens + choice.head_chunk - 1) / choice.head_chunk;
}

/// Returns the choice as flags of train_gpt2.
std::string to_flags(const MemoryChoice& choice);

}  // namespace sluice
