#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/dtype.h"

namespace sluice {

/// Storage formats of the master weights and moments when the weights are 16-bit. The numbers are
/// bytes per parameter with AdamW, not counting the working weight. The first two give the same
/// bits; the others round narrow values stochastically. f16 weights cannot use `split` and have an
/// f32 master in the other layouts. f32 weights are their own master.
enum class StateLayout : std::uint8_t {
  fp32,    ///< 12: master weight, m, v in f32
  split,   ///< 10: the bf16 working weight and 16 more bits are the master weight, exactly
  bf16m,   ///< 8: split, m in bf16
  bf16mv,  ///< 6: split, m and v in bf16
  int8     ///< 4: split, m and sqrt(v) in 8 bits, one scale per block (AdamW::block)
};

constexpr std::array<std::string_view, 5> state_layout_names{"fp32", "split", "bf16m", "bf16mv",
                                                             "int8"};
constexpr std::string_view name_of(StateLayout layout) {
  return state_layout_names[static_cast<std::size_t>(layout)];
}

std::optional<StateLayout> layout_named(std::string_view name);
/// Throws Error (usage) if the layout does not support weights of dtype `working`.
void require_layout(StateLayout layout, DType working);

/// True if the master weight is stored as the working weight and a remainder.
constexpr bool splits_master(StateLayout layout, DType working) {
  return layout != StateLayout::fp32 && working == DType::bf16;
}

/// The place of a large matrix's optimizer state, and the processor that updates it. Weights and
/// gradients stay on the device unless said otherwise. With HostMemory::file a file takes the state
/// that would rest in host memory.
enum class Residency : std::uint8_t {
  device,    ///< in device memory
  streamed,  ///< in pinned host memory; copied to the device for its update
  /// Streamed, and updated during the backward pass, before clipping is known; the update can be
  /// undone.
  speculative,
  cpu,  ///< in host memory, where the CPU updates it
  /// The same, and so do weights and gradients: the weights visit the device before they are used,
  /// the gradients leave it after their last backward.
  host
};

}  // namespace sluice
