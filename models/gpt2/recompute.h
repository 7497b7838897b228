#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// What a block does not keep for the backward pass but computes again there, with the same bits.
enum class Recompute {
  none,
  gelu,     ///< the output of the MLP's GELU
  gelu_ln,  ///< that, and the outputs of both LayerNorms
  block,    ///< all but the block's input
};

/// The modes of all layers from "none", "gelu", "gelu+ln" or "block", or from a list such as
/// "block*12,gelu+ln": the first 12 layers, then all that are left. Throws Error (usage).
std::vector<Recompute> parse_recompute(const std::string& text, std::int64_t n_layer);
/// The shortest text that stands for these modes.
std::string to_string(const std::vector<Recompute>& per_layer);

}  // namespace sluice
