#pragma once

#include <filesystem>
#include <span>

#include "engine/io/file.h"
#include "engine/timeline.h"

namespace sluice {

/// A timeline in Chrome's trace event format, for chrome://tracing or Perfetto: a row for the
/// computing and one for each direction of copies. Every call leaves a file that those can open.
class TraceFile {
 public:
  explicit TraceFile(const std::filesystem::path& path);

  void write(std::span<const Timeline::Span> spans);

 private:
  File file_;
};

}  // namespace sluice
