#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "apps/cli/command_line.h"
#include "apps/trace/rank_spans.h"
#include "engine/io/file.h"

namespace sluice {

/// Writes the activities of ranks in Chrome's trace event format, for chrome://tracing or Perfetto:
/// a process for each rank with one row for computation, one for each direction of copies, one for
/// the network and one for the host. After every call the file can be opened by those.
class TraceFile {
 public:
  explicit TraceFile(const std::filesystem::path& path);

  /// Names a rank. Viewers show ranks in the order of their numbers.
  void name(int rank, const std::string& name);
  void write(std::span<const RankSpan> spans);

 private:
  void append(const std::string& text);

  File file_;
};

/// Declares --trace, which replaces only an older trace.
void add_trace(CommandLine& line, std::string& value, const std::string& help);

}  // namespace sluice
