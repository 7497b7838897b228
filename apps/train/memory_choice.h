#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "models/gpt2/recompute.h"
#include "optim/state_layout.h"

namespace sluice {

/// What state on its way takes of the device.
struct Staging {
  std::int64_t chunk = std::int64_t{4} << 20;  ///< parameters that stream at a time
  int places = 4;                              ///< chunks that may be on their way

  bool operator==(const Staging&) const = default;
};

/// Everything that decides how much memory a training run takes beside its model and its batch.
struct MemoryChoice {
  std::int64_t micro_batch = 1;        ///< sequences
  std::vector<Recompute> recompute{};  ///< of each layer
  StateLayout layout = StateLayout::fp32;
  bool narrow_gradients = false;     ///< sums of the blocks' matrices in bf16
  std::int64_t resident_blocks = 0;  ///< the lowest, whose state stays on the device
  std::int64_t cpu_blocks = 0;       ///< the highest, whose state the CPU updates in host memory
  /// The highest of those between, whose state visits the device: updated under the backward pass.
  std::int64_t speculative_blocks = 0;
  Staging staging{};

  /// Whether inputs of blocks rest on the host between the passes.
  bool rests_inputs() const {
    return std::ranges::find(recompute, Recompute::block_on_host) != recompute.end();
  }
  std::int64_t visiting_blocks() const {
    return static_cast<std::int64_t>(recompute.size()) - resident_blocks - cpu_blocks;
  }
  bool streams() const { return resident_blocks < static_cast<std::int64_t>(recompute.size()); }
};

/// As flags of train_gpt2.
std::string to_flags(const MemoryChoice& choice);

}  // namespace sluice
