#include "apps/train/trace_file.h"

#include <fmt/format.h>

#include <iterator>
#include <string>

namespace sluice {

namespace {

std::filesystem::path path_of(std::filesystem::path path, int rank) {
  if (rank > 0) path.replace_extension(fmt::format("rank-{}{}", rank, path.extension().string()));
  return path;
}

}  // namespace

TraceFile::TraceFile(const std::filesystem::path& path, int rank)
    : rank_(rank), file_(File::create(path_of(path, rank))) {
  // The format lets the closing bracket be missing, so that a run may end at any time.
  std::string text = "[\n";
  constexpr std::string_view names[] = {"compute", "host to device", "device to host", "network"};
  for (std::size_t lane = 0; lane < std::size(names); ++lane)
    text +=
        fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}},)"
                    "\n",
                    rank, lane, names[lane]);
  file_.write(std::as_bytes(std::span(text)));
}

void TraceFile::write(std::span<const Timeline::Span> spans) {
  std::string text;
  for (const Timeline::Span& span : spans)  // times are in microseconds
    fmt::format_to(std::back_inserter(text),
                   R"({{"name":"{}","ph":"X","pid":{},"tid":{},"ts":{:.1f},"dur":{:.1f}}},)"
                   "\n",
                   span.name, rank_, static_cast<int>(span.lane), span.start * 1e3,
                   span.length * 1e3);
  file_.write(std::as_bytes(std::span(text)));
}

}  // namespace sluice
