#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "apps/train/rank_spans.h"
#include "engine/io/file.h"

namespace sluice {

/// What ranks did when, in Chrome's trace event format, for chrome://tracing or Perfetto: a process
/// for each rank with a row for the computing, one for each direction of copies and one for the
/// network. Every call leaves a file that those can open.
class TraceFile {
 public:
  explicit TraceFile(const std::filesystem::path& path);

  /// Names a rank. They appear in the order of their numbers.
  void name(int rank, const std::string& name);
  void write(std::span<const RankSpan> spans);

 private:
  void append(const std::string& text);

  File file_;
};

/// Refuses (usage) a file for --trace that holds anything but an older trace.
void require_trace_or_new(const std::filesystem::path& file);

}  // namespace sluice
