#pragma once

#include <array>
#include <string>
#include <string_view>

#include "models/decoder/config.h"

namespace sluice {

/// Names of a family's parameters, as Hugging Face's files have them. Those of matrices and norms
/// go on with ".weight" or ".bias", and those in a block begin with blocks, its number and a dot.
struct DecoderNames {
  std::string_view title;  ///< of the family, for messages
  std::string_view table, positions, blocks, final_norm, head, head_bias{};
  std::string_view norm_1, qkv, attention_out, norm_2, mlp_in, mlp_out;
  std::string_view query_norm{}, key_norm{};
  /// The layers of which files have the outputs of qkv and of mlp_in; empty: they have them whole.
  std::array<std::string_view, 3> qkv_parts{};
  std::array<std::string_view, 2> mlp_parts{};
  /// What all names but the head's begin with in files of the whole model, but not in files of the
  /// model without its head.
  std::string_view prefix;

  /// Returns what PEFT's files of adapters put before our names of layers.
  std::string adapter_prefix() const;
};
const DecoderNames& names_of(Family family);

}  // namespace sluice
