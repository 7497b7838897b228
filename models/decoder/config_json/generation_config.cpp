#include "models/decoder/config_json/generation_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/io/json_document.h"
#include "models/decoder/config_json/config_values.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

/// Keys that change the tokens of a text, and the values with which they change nothing.
struct Unsupported {
  const char* key;
  const char* idle;  ///< as a JSON list
};
constexpr Unsupported unsupported[] = {{"repetition_penalty", "[1]"},
                                       {"encoder_repetition_penalty", "[1]"},
                                       {"no_repeat_ngram_size", "[0]"},
                                       {"encoder_no_repeat_ngram_size", "[0]"},
                                       {"min_length", "[0]"},
                                       {"min_new_tokens", "[0]"},
                                       {"min_p", "[0]"},
                                       {"top_h", "[]"},
                                       {"typical_p", "[1]"},
                                       {"epsilon_cutoff", "[0]"},
                                       {"eta_cutoff", "[0]"},
                                       {"num_beams", "[1]"},
                                       {"num_beam_groups", "[1]"},
                                       {"penalty_alpha", "[0]"},
                                       {"diversity_penalty", "[0]"},
                                       {"length_penalty", "[1]"},
                                       {"guidance_scale", "[1]"},
                                       {"bad_words_ids", "[]"},
                                       {"sequence_bias", "[]"},
                                       {"forced_bos_token_id", "[]"},
                                       {"forced_eos_token_id", "[]"},
                                       {"suppress_tokens", "[[]]"},
                                       {"begin_suppress_tokens", "[[]]"},
                                       {"exponential_decay_length_penalty", "[]"},
                                       {"watermarking_config", "[]"},
                                       {"stop_strings", "[[]]"},
                                       {"max_time", "[]"},
                                       {"dola_layers", "[]"}};

/// A number from `low` to `high`, if the key is there.
std::optional<double> number(const ConfigValues& values, const std::string& key, double low,
                             double high) {
  if (!values.has(key)) return std::nullopt;
  const Json& value = values.json().at(key);
  if (!value.is_number() || !(value.get<double>() >= low) || value.get<double>() > high)
    values.refuse(key, "it is no such number");
  return value.get<double>();
}

}  // namespace

GenerationDefaults read_generation_config(const std::filesystem::path& folder,
                                          std::int64_t vocabulary) {
  GenerationDefaults defaults;
  const std::filesystem::path file = folder / generation_config_file;
  if (!std::filesystem::exists(file)) return defaults;
  const Json json = read_json_file(file, std::size_t{1} << 20);
  const ConfigValues values(json, file.string());
  if (!json.is_object()) return defaults;
  defaults.end_ids = values.ids("eos_token_id", vocabulary);
  defaults.temperature = number(values, "temperature", 0, 1e6);
  defaults.top_p = number(values, "top_p", 0, 1);
  defaults.top_k = values.optional_size("top_k");
  defaults.max_tokens = values.optional_size("max_new_tokens");
  if (values.has("do_sample")) {
    const bool samples = values.boolean("do_sample", false);
    if (!defaults.temperature) defaults.temperature = 1;
    if (!samples) defaults.temperature = 0;
    if (!defaults.top_k) defaults.top_k = 50;
  }
  for (const auto& [key, idle] : unsupported) {
    if (!values.has(key)) continue;
    const Json idle_values = Json::parse(idle);
    if (std::ranges::find(idle_values, json.at(key)) == idle_values.end())
      defaults.unused.emplace_back(key);
  }
  return defaults;
}

}  // namespace sluice
