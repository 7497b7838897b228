#pragma once

#include "models/decoder/config.h"
#include "models/decoder/config_json/config_values.h"

namespace sluice {

/// What a family has where no key says more.
struct RotaryDefaults {
  const char* base_key = "rope_theta";  ///< of transformers 4, beside "rope_scaling"
  const char* share_key = "partial_rotary_factor";
  bool partial = false;  ///< only a part of a head's columns may turn
  double share = 1;      ///< of a head's columns that turn
};

/// Rotary frequencies, and the share of a head's columns that they turn.
struct RotaryKeys {
  RotaryConfig rotary;
  double share;
};

/// Reads them with the precedence of transformers 5: "rope_scaling" if it is there and not empty,
/// else "rope_parameters", has all but the base and the share, and these too if it names them.
/// `context`: the model's, which Llama 3.1's scaling takes for the one of pretraining if none is
/// given. Throws Error (usage) for a kind of scaling that is not supported.
RotaryKeys read_rotary(const ConfigValues& values, std::int64_t context,
                       const RotaryDefaults& defaults);

}  // namespace sluice
