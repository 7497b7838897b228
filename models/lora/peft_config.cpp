#include "models/lora/peft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/decoder/config.h"
#include "models/lora/adapter_file.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Keys that change nothing in an adapter that is read: they say where it comes from, how it was
/// begun, or what holds only beside another key, which is refused. PEFT itself sets fan_in_fan_out
/// to what the layer needs.
constexpr std::string_view harmless[] = {
    "auto_mapping",   "peft_version",      "revision",           "inference_mode", "fan_in_fan_out",
    "megatron_core",  "qalora_group_size", "loftq_config",       "eva_config",     "corda_config",
    "lora_ga_config", "runtime_config",    "ensure_weight_tying"};

constexpr std::string_view used[] = {"peft_type",
                                     "task_type",
                                     "base_model_name_or_path",
                                     "r",
                                     "lora_alpha",
                                     "lora_dropout",
                                     "use_rslora",
                                     "bias",
                                     "target_modules",
                                     "exclude_modules",
                                     "layers_to_transform",
                                     "layers_pattern",
                                     "init_lora_weights"};

/// What keys that must be off ask for.
constexpr std::pair<std::string_view, std::string_view> lacking[] = {
    {"use_dora", "DoRA is not supported"},
    {"rank_pattern", "ranks that differ between layers are not supported"},
    {"alpha_pattern", "scales that differ between layers are not supported"},
    {"modules_to_save",
     "modules that are trained and saved whole, such as embeddings and head, are "
     "not supported"},
    {"lora_bias", "trained biases are not supported"},
    {"layer_replication", "repeated layers are not supported"},
    {"trainable_token_indices", "trained rows of the embedding are not supported"},
    {"target_parameters", "adapters of parameters that are no layer's weight are not supported"}};

/// Keys that PEFT ignores if they are empty. An empty kasa_config, for example, turns KaSA on.
constexpr std::string_view may_be_empty[] = {"rank_pattern", "alpha_pattern", "modules_to_save",
                                             "layer_replication", "target_parameters"};

bool is_off(std::string_view key, const Json& value) {
  return value.is_null() || value == false ||
         (std::ranges::find(may_be_empty, key) != std::end(may_be_empty) &&
          (value.is_array() || value.is_object()) && value.empty());
}

class Reader {
 public:
  Reader(const Json& json, const fs::path& file) : json_(json), file_(file) {}

  [[noreturn]] void refuse(std::string_view key, std::string_view why) const {
    refuse_adapter(file_, fmt::format("{} is {}; {}", key, shown(json_.at(key)), why));
  }
  /// Returns null for a key that is not there.
  const Json& at(const char* key) const {
    static const Json none;
    const auto found = json_.find(key);
    return found == json_.end() ? none : *found;
  }
  bool has(const char* key) const { return json_.contains(key); }

  double number(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    if (!at(key).is_number() || !std::isfinite(at(key).get<double>()))
      refuse(key, "it must be a number");
    return at(key).get<double>();
  }
  bool boolean(const char* key) const {
    if (!at(key).is_null() && !at(key).is_boolean()) refuse(key, "it must be true or false");
    return at(key) == true;
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> all;
    const Json& value = at(key);
    if (value.is_null()) return all;
    if (value.is_string()) return {value.get<std::string>()};
    if (!value.is_array()) refuse(key, "it must be a list of names");
    for (const Json& one : value) {
      if (!one.is_string()) refuse(key, "it must be a list of names");
      all.push_back(one.get<std::string>());
    }
    return all;
  }
  PeftConfig::Names names(const char* key) const;
  void require_known() const;

 private:
  const Json& json_;
  const fs::path& file_;
};

using Regex = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;

Regex compiled(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  return {pcre2_compile(
              reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
              PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C,
              &error, &at, nullptr),
          &pcre2_code_free};
}

/// Returns true if the whole name matches, as by Python's re.fullmatch.
bool matches(const std::string& pattern, std::string_view name) {
  const Regex code = compiled(pattern);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(limits.get(), 100'000);
  const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(),
                                0, 0, match.get(), limits.get());
  if (found < 0 && found != PCRE2_ERROR_NOMATCH)
    fail(fmt::format("the regular expression {} of an adapter takes too long for {}",
                     quote(pattern), quote(name)),
         ErrorKind::usage);
  return found >= 0;
}

PeftConfig::Names Reader::names(const char* key) const {
  if (!at(key).is_string()) return {.ends = texts(key), .pattern = {}};
  PeftConfig::Names found{.ends = {}, .pattern = at(key).get<std::string>()};
  if (!found.pattern.empty() && compiled(found.pattern) == nullptr)
    refuse(key, "it is no regular expression that is read here; give a list of names");
  return found;
}

void Reader::require_known() const {
  for (const auto& [key, value] : json_.items()) {
    if (std::ranges::find(used, key) != std::end(used) ||
        std::ranges::find(harmless, key) != std::end(harmless) || is_off(key, value))
      continue;
    const auto* const known =
        std::ranges::find(lacking, key, &std::pair<std::string_view, std::string_view>::first);
    refuse(key, known != std::end(lacking) ? known->second : "this key is not supported");
  }
}

bool chosen(const PeftConfig::Names& names, std::string_view module) {
  if (!names.pattern.empty()) return matches(names.pattern, module);
  return std::ranges::any_of(names.ends, [&](const std::string& end) {
    return module == end || module.ends_with("." + end);
  });
}

/// Refuses adapters that begin with a change of the model's own weights, which PEFT makes again
/// when it opens them. Returns true for a start of random numbers.
bool random_start(const Reader& read) {
  const Json start = read.has("init_lora_weights") ? read.at("init_lora_weights") : Json(true);
  if (start.is_boolean() || start.is_null()) return start != true;
  std::string name = start.is_string() ? start.get<std::string>() : "";
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name == "gaussian" || start == "orthogonal" || start == "eva") return start == "orthogonal";
  read.refuse("init_lora_weights",
              "a start that may change the model's own weights is not supported; save the adapter "
              "with PEFT's path_initial_model_for_weight_conversion first");
}

void read_blocks(const Reader& read, PeftConfig& into) {
  // PEFT refuses these pairs.
  const Json& blocks = read.at("layers_to_transform");
  for (const char* const key : {"layers_to_transform", "layers_pattern"})
    if (!read.at(key).is_null() && read.at("target_modules").is_string())
      read.refuse(key, "target_modules must then be a list of names");
  into.lists = read.texts("layers_pattern");
  if (!into.lists.empty() && into.lists != std::vector<std::string>{""} && blocks.is_null())
    read.refuse("layers_pattern", "layers_to_transform must be given too");
  const bool given = !blocks.is_null() && !(blocks.is_array() && blocks.empty());
  const Json list = blocks.is_array() ? blocks : given ? Json::array({blocks}) : Json::array();
  for (const Json& block : list) {
    if (!block.is_number_unsigned() || block > largest_size)
      read.refuse("layers_to_transform", "it must be a block's number or a list of them");
    into.blocks.push_back(block.get<std::int64_t>());
  }
  for (const std::string& name : into.lists)
    if (!std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
      read.refuse("layers_pattern", "only names, such as \"layers\", are supported");
  std::erase(into.lists, "");
}

/// Returns the number of the block of a module, as PEFT finds it: after the name of the list, or
/// the first number after at least two names; -1: there is none.
std::int64_t block_of(std::string_view module, const std::vector<std::string>& lists) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= module.size();) {
    const std::size_t end = std::min(module.find('.', at), module.size());
    parts.push_back(module.substr(at, end - at));
    at = end + 1;
  }
  const auto number = [&](std::size_t i) -> std::int64_t {
    const bool digits = !parts[i].empty() && parts[i].size() < 10 &&
                        parts[i].find_first_not_of("0123456789") == std::string_view::npos;
    return digits ? std::stoll(std::string(parts[i])) : -1;
  };
  for (const std::string& list : lists)
    for (std::size_t i = 0; i + 2 < parts.size(); ++i)
      if (parts[i] == list && number(i + 1) >= 0) return number(i + 1);
  for (std::size_t i = 2; lists.empty() && i + 1 < parts.size(); ++i)
    if (number(i) >= 0) return number(i);
  return -1;
}

}  // namespace

std::string PeftConfig::left_out_by(std::string_view module) const {
  if (chosen(excluded, module)) return "exclude_modules";
  if (all_linear) return "";
  // A module that is named whole is adapted in any block.
  if (std::ranges::find(targets.ends, module) != targets.ends.end()) return "";
  if (!chosen(targets, module)) return "target_modules";
  if (blocks.empty() || std::ranges::find(blocks, block_of(module, lists)) != blocks.end())
    return "";
  return "layers_to_transform";
}

PeftConfig read_peft_config(const fs::path& file) {
  const Json json = read_json_file(file, 1 << 20);
  if (!json.is_object()) refuse_adapter(file, "it is no JSON object");
  const Reader read(json, file);
  if (read.has("peft_type") && read.at("peft_type") != "LORA")
    read.refuse("peft_type", "only adapters of the type LORA are supported");
  if (const Json& task = read.at("task_type"); !task.is_null() && task != "CAUSAL_LM")
    read.refuse("task_type", "only adapters for CAUSAL_LM are supported");
  if (read.has("bias") && read.at("bias") != "none")
    read.refuse("bias", "trained biases are not supported");
  read.require_known();

  PeftConfig config;
  config.random_start = random_start(read);
  if (read.has("r") &&
      (!read.at("r").is_number_integer() || read.at("r") < 1 || read.at("r") > largest_size))
    read.refuse("r", fmt::format("a rank is a whole number from 1 to {}", largest_size));
  constexpr std::int64_t pefts_rank = 8, pefts_alpha = 8;
  config.lora.rank = read.has("r") ? read.at("r").get<std::int64_t>() : pefts_rank;
  config.lora.alpha = read.number("lora_alpha", pefts_alpha);
  config.lora.dropout = read.number("lora_dropout", 0);
  if (!(config.lora.dropout >= 0 && config.lora.dropout < 1))
    read.refuse("lora_dropout", "a probability is from 0 to below 1");
  // Rank-stabilised LoRA divides by the root of the rank.
  if (read.boolean("use_rslora"))
    config.lora.alpha *= std::sqrt(static_cast<double>(config.lora.rank));
  const Json& base = read.at("base_model_name_or_path");
  if (!base.is_null() && !base.is_string())
    read.refuse("base_model_name_or_path", "it must be a folder or a name");
  if (base.is_string()) config.base = base.get<std::string>();

  const Json& targets = read.at("target_modules");
  if (targets.is_null() || targets.empty() || targets == "")
    refuse_adapter(
        file,
        fmt::format("target_modules is {}; it must name the layers, as PEFT writes "
                    "them when it saves an adapter",
                    read.has("target_modules") ? shown(read.at("target_modules")) : "missing"));
  std::string spec = read.at("target_modules").is_string()
                         ? read.at("target_modules").get<std::string>()
                         : std::string();
  std::ranges::transform(spec, spec.begin(), [](unsigned char c) { return std::tolower(c); });
  config.all_linear = spec == "all-linear";
  if (!config.all_linear) config.targets = read.names("target_modules");
  config.excluded = read.names("exclude_modules");
  read_blocks(read, config);
  return config;
}

}  // namespace sluice
