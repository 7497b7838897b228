#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// What a block does not keep for the backward pass but computes again there, with the same bits.
enum class Recompute {
  none,
  gelu,           ///< the output of the MLP's GELU
  gelu_ln,        ///< that, and the outputs of both LayerNorms
  block,          ///< all but the block's input
  block_on_host,  ///< the same, and the input rests in host memory
};

/// Each keeps less on the device than the one before.
inline constexpr std::array recompute_modes{Recompute::none, Recompute::gelu, Recompute::gelu_ln,
                                            Recompute::block, Recompute::block_on_host};

/// The modes of all layers from "none", "gelu", "gelu+ln", "block" or "block+host", or from a list
/// such as "block*12,gelu+ln": the first 12 layers, then all that are left. Throws Error (usage).
std::vector<Recompute> parse_recompute(const std::string& text, std::int64_t n_layer);
/// The shortest text that stands for these modes.
std::string to_string(const std::vector<Recompute>& per_layer);

/// Whether all but the input is computed again.
constexpr bool recomputes_block(Recompute mode) {
  return mode == Recompute::block || mode == Recompute::block_on_host;
}

}  // namespace sluice
