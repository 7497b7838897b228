#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/lora/lora_config.h"

namespace sluice {

/// What adapter_config.json says, by the meaning that PEFT gives its keys.
struct PeftConfig {
  LoraConfig lora;   ///< its targets are set by read_adapter()
  std::string base;  ///< the model that it is for: a folder, or a name at a hub; may be empty

  /// The keys that choose modules: names or ends of names, or one regular expression.
  struct Names {
    std::vector<std::string> ends;
    std::string pattern;  ///< of Python's re; "": there is none
  };
  Names targets, excluded;
  bool all_linear = false;           ///< target_modules is "all-linear"
  std::vector<std::int64_t> blocks;  ///< layers_to_transform; empty: all
  std::vector<std::string> lists;    ///< layers_pattern: what the list of blocks is called

  /// PEFT would begin layers without tensors with random numbers, not with matrices B of zeros.
  bool random_start = false;

  /// Returns why PEFT does not adapt the module of this name ("model.layers.0.mlp.up_proj"): the
  /// key that leaves it out. "": PEFT does.
  std::string left_out_by(std::string_view module) const;
};

/// Reads adapter_config.json. Each key of PEFT 0.21's LoraConfig is used as PEFT does, changes
/// nothing in an adapter that is read, or must be off. Throws Error (usage) that names the key and
/// its value.
PeftConfig read_peft_config(const std::filesystem::path& file);

}  // namespace sluice
