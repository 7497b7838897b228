#include "apps/train/trace_file.h"

#include <fmt/format.h>

#include <iterator>
#include <string>

namespace sluice {

TraceFile::TraceFile(const std::filesystem::path& path) : file_(File::create(path)) {
  // The format lets the closing bracket be missing, so that a run may end at any time.
  std::string text = "[\n";
  constexpr std::string_view names[] = {"compute", "host to device", "device to host", "network"};
  for (std::size_t lane = 0; lane < std::size(names); ++lane)
    text +=
        fmt::format(R"({{"name":"thread_name","ph":"M","pid":0,"tid":{},"args":{{"name":"{}"}}}},)"
                    "\n",
                    lane, names[lane]);
  file_.write(std::as_bytes(std::span(text)));
}

void TraceFile::write(std::span<const Timeline::Span> spans) {
  std::string text;
  for (const Timeline::Span& span : spans)  // times are in microseconds
    fmt::format_to(std::back_inserter(text),
                   R"({{"name":"{}","ph":"X","pid":0,"tid":{},"ts":{:.1f},"dur":{:.1f}}},)"
                   "\n",
                   span.name, static_cast<int>(span.lane), span.start * 1e3, span.length * 1e3);
  file_.write(std::as_bytes(std::span(text)));
}

}  // namespace sluice
