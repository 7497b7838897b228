#pragma once

#include <string>
#include <string_view>

#include "models/decoder/config.h"
#include "models/decoder/config_json/config_values.h"

namespace sluice {

// Every key of a config.json is accounted for: it is used, or it has no effect on what is computed
// in transformers either, or only some of its values are supported, or nobody knows it.

/// What becomes of a key.
enum class KeyUse : std::uint8_t {
  used,      ///< the reader of the family reads it
  harmless,  ///< decides nothing that training or inference computes
  fixed,     ///< decides something; values but those of transformers' default are refused
  unknown    ///< neither a family's configuration class nor the code that computes it reads it
};
KeyUse use_of(std::string_view key, Family family);

/// Returns the keys of a configuration that are not used, as a JSON object, to be written again; ""
/// for none. Throws Error (usage) for one with a value that changes what is computed and that is
/// not supported.
std::string unused_keys(const ConfigValues& values, Family family);

}  // namespace sluice
