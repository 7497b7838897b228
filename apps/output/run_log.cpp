#include "apps/output/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "apps/cli/progress.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Returns the bytes up to the end of the last whole line. Searches only the last MiB for it.
std::uint64_t whole_lines(const fs::path& path) {
  const File file = File::open(path);
  const std::uint64_t size = file.size(), searched = std::min(size, std::uint64_t{1} << 20);
  std::string end(searched, '\0');
  file.read_at(size - searched, std::as_writable_bytes(std::span(end)));
  const auto newline = end.rfind('\n');
  if (newline != std::string::npos) return size - searched + newline + 1;
  return searched < size ? size : 0;
}

File open_log(const fs::path& path) {
  File file = File::append(path);
  if (!fs::is_regular_file(path)) return file;
  if (const std::uint64_t whole = whole_lines(path); whole < file.size()) file.truncate(whole);
  return file;
}

/// "2026-03-01T12:34:56.789Z"
std::string time_now() {
  using namespace std::chrono;
  const auto now = time_point_cast<milliseconds>(system_clock::now());
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", text, now.time_since_epoch().count() % 1000);
}

std::string line_of(std::string_view event, const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line{{"event", event}, {"time", time_now()}};
  line.update(fields);
  // A half-trained model's text may be cut inside a character: that is replaced, not refused.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

RunLog::RunLog(const fs::path& file) : file_(open_log(file)) {}

bool RunLog::append(const std::string& line) {
  try {
    const std::uint64_t before = file_.size();
    try {
      file_.write(std::as_bytes(std::span(line)));
    } catch (const Error&) {
      file_.truncate(before);  // half a line would spoil the next one
      throw;
    }
    return true;
  } catch (const Error& error) {
    if (missing_++ == 0) {
      reason_ = error.what();
      say_warning(reason_ + "; the log goes on once it can be written");
    }
    return false;
  }
}

void RunLog::write(std::string_view event, const nlohmann::ordered_json& fields) {
  const std::string line = line_of(event, fields);
  if (missing_ > 0) {
    const std::string gap = line_of(
        "warning", {{"message", fmt::format("{} lines are missing here: {}", missing_, reason_)}});
    if (!append(gap)) return;  // append() has counted it as missing
    missing_ = 0;
  }
  append(line);
}

}  // namespace sluice
