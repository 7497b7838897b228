#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace sluice {

/// log.jsonl: one JSON object a line, each with an `event`; numbers that are not finite are null.
/// Appends, and every line is with the system when the call returns.
class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& file);

  /// `fields` is an object; "event" is put in front of it.
  void write(std::string_view event, const nlohmann::ordered_json& fields);

 private:
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace sluice
