#include "apps/checkpoint/save_cadence.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

constexpr std::chrono::duration<double> usual{300};  // see decided_options()
/// An automatic interval is at least this many times as long as a save.
constexpr double saves_per_interval = 20;

struct TimeUnit {
  std::string_view name;
  const char* word;
  double seconds;
};
constexpr TimeUnit time_units[] = {{"s", "second", 1}, {"min", "minute", 60}, {"h", "hour", 3600}};

std::string count_of(std::int64_t count, std::string_view word) {
  return count == 1 ? fmt::format("every {}", word) : fmt::format("every {} {}s", count, word);
}

}  // namespace

SaveCadence::SaveCadence(const std::optional<std::string>& asked) {
  if (!asked) {
    automatic_ = true;
    interval_ = usual;
    return;
  }
  const std::string& text = *asked;
  std::int64_t number = -1;
  const char* const end_of_text = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), end_of_text, number);
  const std::string_view unit(end, static_cast<std::size_t>(end_of_text - end));
  if (error == std::errc() && number >= 0 && number <= std::int64_t{1} << 40) {
    if (unit.empty()) {
      steps_ = number;
      return;
    }
    for (const TimeUnit& known : time_units) {
      if (unit != known.name || number == 0) continue;
      interval_ = std::chrono::duration<double>(static_cast<double>(number) * known.seconds);
      return;
    }
  }
  fail(fmt::format("--save-every: '{}' is neither a number of steps, such as 500, nor a time, such "
                   "as 30s, 10min or 2h, nor auto",
                   excerpt(text)),
       ErrorKind::usage);
}

bool SaveCadence::due_by_time() const {
  return interval_.count() > 0 && Clock::now() - last_ >= interval_;
}

void SaveCadence::saved(double waited_ms) {
  last_ = Clock::now();
  if (automatic_)
    interval_ =
        std::max(usual, std::chrono::duration<double>(waited_ms / 1e3 * saves_per_interval));
}

std::string SaveCadence::text() const {
  if (steps_ > 0) return count_of(steps_, "step");
  if (interval_.count() == 0) return "at the end";
  const TimeUnit* best = &time_units[0];
  const auto seconds = static_cast<std::int64_t>(interval_.count());
  for (const TimeUnit& unit : time_units)
    if (seconds % static_cast<std::int64_t>(unit.seconds) == 0) best = &unit;
  return count_of(seconds / static_cast<std::int64_t>(best->seconds), best->word);
}

}  // namespace sluice
