#include "apps/trace/trace_file.h"

#include <fmt/format.h>

#include <iterator>

#include "apps/output/output_file.h"

namespace sluice {

TraceFile::TraceFile(const std::filesystem::path& path) : file_(File::create(path)) {
  // The format allows the closing bracket to be missing, so a run may end at any time.
  append("[\n");
}

void TraceFile::append(const std::string& text) {
  file_.write(std::as_bytes(std::span(text)));
}

void TraceFile::name(int rank, const std::string& name) {
  std::string text = fmt::format(
      R"({{"name":"process_name","ph":"M","pid":{0},"args":{{"name":"{1}"}}}},)"
      "\n"
      R"({{"name":"process_sort_index","ph":"M","pid":{0},"args":{{"sort_index":{0}}}}},)"
      "\n",
      rank, name);
  constexpr std::string_view lanes[] = {"compute", "host to device", "device to host", "network",
                                        "host"};
  for (std::size_t lane = 0; lane < std::size(lanes); ++lane)
    text +=
        fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}},)"
                    "\n",
                    rank, lane, lanes[lane]);
  append(text);
}

void TraceFile::write(std::span<const RankSpan> spans) {
  std::string text;
  for (const RankSpan& span : spans) {  // times are in microseconds
    fmt::format_to(std::back_inserter(text),
                   R"({{"name":"{}","ph":"X","pid":{},"tid":{},"ts":{:.1f},"dur":{:.1f})",
                   span.name(), span.rank, span.lane, span.start * 1e3, span.length * 1e3);
    if (span.stage >= 0)
      fmt::format_to(std::back_inserter(text), R"(,"args":{{"stage":{},"micro_batch":{}}})",
                     span.stage, span.micro_batch);
    text += "},\n";
  }
  append(text);
}

void add_trace(CommandLine& line, std::string& value, const std::string& help) {
  const std::string start = "[\n";
  const auto is_ours = [=](const File& old) {
    // A run that is killed early has named no rank.
    return begins_with({start + R"({"name":"process_name")"})(old) ||
           (old.size() == start.size() && begins_with({start})(old));
  };
  add_output_file(line, "--trace", value, "a trace of train_gpt2", is_ours, help);
}

}  // namespace sluice
