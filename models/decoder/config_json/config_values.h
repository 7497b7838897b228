#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/ops/linear/mlp.h"

namespace sluice {

/// Typed access to the keys of a JSON object, such as a config.json. Every violation throws Error
/// (usage) that names the file, the key and the value. The object must outlive this.
class ConfigValues {
 public:
  /// `file` begins every error.
  ConfigValues(const nlohmann::json& json, std::string file);

  const nlohmann::json& json() const { return json_; }
  /// Throws the error "FILE: "KEY" is VALUE; WHAT".
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;

  /// Returns true if the key is there and not null.
  bool has(const std::string& key) const;
  /// A whole number up to largest_size; refused if it is missing.
  std::int64_t size(const std::string& key) const;
  std::optional<std::int64_t> optional_size(const std::string& key) const;
  /// The same from 1 on; `fallback` if it is missing or null.
  std::int64_t positive_size(const std::string& key, std::int64_t fallback) const;
  /// A number between 0 and 1, without both.
  double fraction(const std::string& key, double fallback) const;
  /// A number from 0 to below 1, as the probability of dropout is.
  double probability(const std::string& key, double fallback) const;
  /// A number above 0 and up to 1.
  double share(const std::string& key, double fallback) const;
  /// A number from 1 to 1e15, such as a factor or the base of rotary positions.
  double factor(const std::string& key, double fallback) const;
  /// The same; refused if it is missing.
  double factor(const std::string& key) const;
  bool boolean(const std::string& key, bool fallback) const;
  /// The activation that a key names as transformers does.
  MlpActivation activation(const std::string& key, MlpActivation fallback) const;
  /// The ids of a key, one or a list, that a vocabulary has; others are no use to anybody.
  std::vector<std::int64_t> ids(const std::string& key, std::int64_t vocabulary) const;
  /// Refuses a key that is there with another value than this.
  void require(const std::string& key, const nlohmann::json& expected) const;
  /// The object that a key has, whose errors name the key too.
  ConfigValues object(const std::string& key) const;

 private:
  const nlohmann::json& json_;
  std::string file_;
};

}  // namespace sluice
