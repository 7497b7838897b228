#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/io/file.h"

namespace sluice {

/// Writes log.jsonl: one JSON object per line, each with an `event` and its `time` (ISO 8601, UTC).
/// Numbers that are not finite are null. Lines are appended and handed to the system before the
/// call returns. A partial line left by a crash is cut off first. If a line cannot be written, as
/// on a full disk, training goes on: the first such line is reported on stdout, and the number of
/// missing lines is logged once a line can be written again.
class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& file);

  /// `fields` is an object; "event" and "time" are put before its fields.
  void write(std::string_view event, const nlohmann::ordered_json& fields);

 private:
  bool append(const std::string& line);

  File file_;
  std::int64_t missing_ = 0;  ///< lines since the last one written
  std::string reason_;
};

}  // namespace sluice
