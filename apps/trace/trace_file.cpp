#include "apps/trace/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
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

void require_trace_or_new(const std::filesystem::path& file) {
  require_own_file("--trace", file, "a trace of train_gpt2", [](const File& old) {
    constexpr std::string_view start = "[\n{\"name\":\"process_name\"";
    std::string found(std::min<std::uint64_t>(start.size(), old.size()), '\0');
    old.read_at(0, std::as_writable_bytes(std::span(found)));
    return found == start || found == "[\n";  // killed before it had named a rank
  });
}

}  // namespace sluice
