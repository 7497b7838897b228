#include "models/decoder/config_json/rotary_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice {
namespace {

using Json = nlohmann::json;

/// Returns the key of the object that counts; "" if there is none. An empty one is none.
std::string object_key(const ConfigValues& values) {
  for (const char* const key : {"rope_scaling", "rope_parameters"})
    if (values.has(key) && !values.object(key).json().empty()) return key;
  return "";
}

/// Refuses what the object may not hold: keys of layers of several kinds, and others that nobody
/// knows and that may be meant to have an effect.
void require_known_keys(const ConfigValues& rope) {
  constexpr std::string_view known[] = {
      "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
      "original_max_position_embeddings", "partial_rotary_factor",
      // Of kinds that are not supported; others do not read them.
      "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
      "short_factor", "long_factor", "finetuned"};
  for (const auto& [key, value] : rope.json().items())
    if (std::ranges::find(known, key) == std::end(known))
      rope.refuse(key, "no such key of rotary positions is supported");
}

Llama3Scaling read_llama3(const ConfigValues& values, const ConfigValues& rope,
                          std::int64_t context) {
  Llama3Scaling scaling;
  scaling.factor = rope.factor("factor");
  scaling.low_frequency = rope.factor("low_freq_factor");
  scaling.high_frequency = rope.factor("high_freq_factor");
  // Transformers copies the key beside the object into it.
  const char* const original = "original_max_position_embeddings";
  scaling.original_context = values.positive_size(original, rope.positive_size(original, context));
  if (scaling.high_frequency <= scaling.low_frequency)
    rope.refuse("high_freq_factor", "it must be above low_freq_factor");
  return scaling;
}

}  // namespace

RotaryKeys read_rotary(const ConfigValues& values, std::int64_t context,
                       const RotaryDefaults& defaults) {
  if (!defaults.partial) values.require(defaults.share_key, 1.0);
  RotaryKeys keys{.rotary = {}, .share = values.share(defaults.share_key, defaults.share)};
  keys.rotary.base = values.factor(defaults.base_key, keys.rotary.base);
  const std::string name = object_key(values);
  if (name.empty()) return keys;
  const ConfigValues rope = values.object(name);
  require_known_keys(rope);
  keys.rotary.base = rope.factor("rope_theta", keys.rotary.base);
  if (!defaults.partial) rope.require("partial_rotary_factor", 1.0);
  keys.share = rope.share("partial_rotary_factor", keys.share);
  const std::string type_key = rope.json().contains("rope_type") ? "rope_type" : "type";
  if (!rope.json().contains(type_key) || rope.json().at(type_key) == "default") return keys;
  if (rope.json().at(type_key) == "linear")
    keys.rotary.divisor = rope.factor("factor");
  else if (rope.json().at(type_key) == "llama3")
    keys.rotary.llama3 = read_llama3(values, rope, context);
  else
    rope.refuse(type_key, "only \"default\", \"linear\" and \"llama3\" are supported");
  return keys;
}

}  // namespace sluice
