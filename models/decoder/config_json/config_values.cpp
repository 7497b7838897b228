#include "models/decoder/config_json/config_values.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/decoder/config.h"

namespace sluice {

using Json = nlohmann::json;

ConfigValues::ConfigValues(const Json& json, std::string file)
    : json_(json), file_(std::move(file)) {}

void ConfigValues::refuse(const std::string& key, const std::string& what) const {
  fail(fmt::format("{}: \"{}\" is {}; {}", file_, key, shown(json_.at(key)), what),
       ErrorKind::usage);
}

bool ConfigValues::has(const std::string& key) const {
  return json_.contains(key) && !json_.at(key).is_null();
}

std::int64_t ConfigValues::size(const std::string& key) const {
  const auto value = optional_size(key);
  if (!value) fail(fmt::format("{}: \"{}\" is missing", file_, key), ErrorKind::usage);
  return *value;
}

std::optional<std::int64_t> ConfigValues::optional_size(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  const Json& value = json_.at(key);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<std::uint64_t>() > static_cast<std::uint64_t>(largest_size)))
    refuse(key, fmt::format("it must be a whole number up to {}", largest_size));
  return value.get<std::int64_t>();
}

std::int64_t ConfigValues::positive_size(const std::string& key, std::int64_t fallback) const {
  const auto value = optional_size(key);
  if (value && *value < 1) refuse(key, fmt::format("it must be from 1 to {}", largest_size));
  return value.value_or(fallback);
}

double ConfigValues::fraction(const std::string& key, double fallback) const {
  if (!json_.contains(key)) return fallback;
  const Json& value = json_.at(key);
  if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() >= 1)
    refuse(key, "it must be a number between 0 and 1");
  return value.get<double>();
}

double ConfigValues::probability(const std::string& key, double fallback) const {
  if (!has(key)) return fallback;
  const Json& value = json_.at(key);
  if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() >= 1)
    refuse(key, "a probability of dropout is from 0 to below 1");
  return value.get<double>();
}

double ConfigValues::share(const std::string& key, double fallback) const {
  if (!has(key)) return fallback;
  const Json& value = json_.at(key);
  if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > 1)
    refuse(key, "it must be a number above 0, at most 1");
  return value.get<double>();
}

double ConfigValues::factor(const std::string& key, double fallback) const {
  return has(key) ? factor(key) : fallback;
}

double ConfigValues::factor(const std::string& key) const {
  if (!json_.contains(key))
    fail(fmt::format("{}: \"{}\" is missing", file_, key), ErrorKind::usage);
  const Json& value = json_.at(key);
  if (!value.is_number() || !(value.get<double>() >= 1) || value.get<double>() > 1e15)
    refuse(key, "it must be a number from 1 to 1e15");
  return value.get<double>();
}

bool ConfigValues::boolean(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!json_.at(key).is_boolean()) refuse(key, "it must be true or false");
  return json_.at(key).get<bool>();
}

MlpActivation ConfigValues::activation(const std::string& key, MlpActivation fallback) const {
  if (!has(key)) return fallback;
  const Json& name = json_.at(key);
  // Transformers has several names of one function.
  for (const char* const same :
       {"gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"})
    if (name == same) return MlpActivation::gelu;
  for (const char* const same : {"gelu", "gelu_python"})
    if (name == same) return MlpActivation::exact_gelu;
  if (name == "relu") return MlpActivation::relu;
  refuse(key, "only \"gelu_new\" (or \"gelu_fast\"), \"gelu\" and \"relu\" are supported");
}

std::vector<std::int64_t> ConfigValues::ids(const std::string& key, std::int64_t vocabulary) const {
  std::vector<std::int64_t> ids;
  if (!has(key)) return ids;
  const Json& value = json_.at(key);
  for (const Json& id : value.is_array() ? value : Json::array({value}))
    if (id.is_number_integer() && id >= 0 && id < vocabulary) ids.push_back(id.get<std::int64_t>());
  return ids;
}

void ConfigValues::require(const std::string& key, const Json& expected) const {
  if (!json_.contains(key) || json_.at(key) == expected) return;
  refuse(key, fmt::format("only {} is supported", shown(expected)));
}

ConfigValues ConfigValues::object(const std::string& key) const {
  if (!json_.at(key).is_object()) refuse(key, "it must be an object");
  return {json_.at(key), fmt::format("{}: {}", file_, key)};
}

}  // namespace sluice
