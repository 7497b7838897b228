#pragma once

#include <filesystem>
#include <span>

#include "engine/io/file.h"
#include "engine/timeline.h"

namespace sluice {

/// A timeline in Chrome's trace event format, for chrome://tracing or Perfetto: a row for the
/// computing, one for each direction of copies and one for the network. Every call leaves a file
/// that those can open. Ranks above 0 write beside it, to NAME.rank-1.json and so on.
class TraceFile {
 public:
  explicit TraceFile(const std::filesystem::path& path, int rank = 0);

  void write(std::span<const Timeline::Span> spans);

 private:
  int rank_;
  File file_;
};

}  // namespace sluice
