#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// The name of the file.
inline constexpr const char* generation_config_file = "generation_config.json";

/// How the makers of a model mean texts to be made, by its generation_config.json.
struct GenerationDefaults {
  std::optional<double> temperature, top_p;
  std::optional<std::int64_t> top_k, max_tokens;
  std::vector<std::int64_t> end_ids;  ///< "eos_token_id"; empty: config.json says it
  std::vector<std::string> unused;    ///< keys that would change a text and are not supported

  bool empty() const { return !temperature && !top_p && !top_k && !max_tokens; }
};

/// Reads the file of a model's folder; nothing where there is none. "do_sample": false is
/// temperature 0; true is what the file says, or else temperature 1, top_k 50 and top_p 1, as in
/// transformers. Without "do_sample" a temperature, top_k or top_p counts too. Throws Error (usage)
/// naming file and key.
GenerationDefaults read_generation_config(const std::filesystem::path& folder,
                                          std::int64_t vocabulary);

}  // namespace sluice
