#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/io/file.h"

namespace sluice {

/// log.jsonl: one JSON object a line, each with an `event` and its `time` (ISO 8601, UTC); numbers
/// that are not finite are null. Appends, and every line is with the system when the call returns.
/// What a crash has left of a line is cut off first. A line that cannot be written, on a full disk
/// say, costs no training: the first one is told of on stdout, and how many are missing stands in
/// the log once it can be written again.
class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& file);

  /// `fields` is an object; "event" and "time" are put in front of it.
  void write(std::string_view event, const nlohmann::ordered_json& fields);

 private:
  bool append(const std::string& line);

  File file_;
  std::int64_t missing_ = 0;  ///< lines, since the last that could be written
  std::string reason_;
};

}  // namespace sluice
