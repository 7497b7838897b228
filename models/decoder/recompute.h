#pragma once

#include <array>
#include <optional>
#include <string_view>

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

/// Returns none, gelu, gelu+ln, block or block+host.
std::string_view name_of(Recompute mode);
std::optional<Recompute> recompute_named(std::string_view name);

/// Returns true if everything but the block's input is recomputed.
constexpr bool recomputes_block(Recompute mode) {
  return mode == Recompute::block || mode == Recompute::block_on_host;
}

}  // namespace sluice
