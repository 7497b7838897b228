#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Activations that a block recomputes in backward, with the same bits, instead of keeping them.
enum class Recompute {
  none,
  gelu,           ///< the output of the MLP's GELU
  gelu_ln,        ///< that, and the outputs of both LayerNorms
  block,          ///< all activations but the block's input
  block_on_host,  ///< the same, with the input offloaded to host memory
};

/// All modes; each keeps less on the device than the one before.
inline constexpr std::array recompute_modes{Recompute::none, Recompute::gelu, Recompute::gelu_ln,
                                            Recompute::block, Recompute::block_on_host};

/// Parses the modes of all layers: "none", "gelu", "gelu+ln", "block", "block+host", or a list such
/// as "block*12,gelu+ln" (the first 12 layers, then all that are left). Throws Error (usage).
std::vector<Recompute> parse_recompute(const std::string& text, std::int64_t n_layer);
/// Returns the shortest text that parse_recompute() reads as these modes.
std::string to_string(const std::vector<Recompute>& per_layer);

/// Returns true if everything but the block's input is recomputed.
constexpr bool recomputes_block(Recompute mode) {
  return mode == Recompute::block || mode == Recompute::block_on_host;
}

}  // namespace sluice
