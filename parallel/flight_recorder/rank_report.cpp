#include "parallel/flight_recorder/rank_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/io/utf8.h"
#include "parallel/flight_recorder/post_mortem.h"

namespace sluice {
namespace {

constexpr std::size_t operations_shown = 5;

std::string state_of_rank(const RankRecord& record) {
  if (record.outcome == RankRecord::Outcome::finished) return "ended well";
  if (record.outcome == RankRecord::Outcome::failed) return "ended with an error";
  switch (record.process) {
    case ProcessState::running:
      return "runs";
    case ProcessState::stopped:
      return "is stopped";
    case ProcessState::gone:
      return "is gone without a word";
    case ProcessState::unknown:
      return "is on another host or in another container";
  }
  return {};
}

std::string duration(const RecordedOperation& operation) {
  if (operation.open()) return "open";
  return fmt::format("{:.3f} ms", static_cast<double>(operation.end - operation.begin) * 1e-6);
}

/// Returns the seconds from one time to another. Their difference in nanoseconds might overflow.
double seconds_between(std::int64_t from, std::int64_t to) {
  return (static_cast<double>(to) - static_cast<double>(from)) * 1e-9;
}

/// A table of every rank's last operations, timed from the start of the first rank.
std::string table(const std::vector<RankRecord>& records) {
  const std::int64_t start = std::ranges::min(records, {}, &RankRecord::started).started;
  std::string text;
  for (const RankRecord& record : records) {
    text += fmt::format(
        "\nrank {} of {}: pid {} on {}{}, {}{}\n", record.rank, record.size, record.id.pid,
        printable_line(record.id.host),
        record.gpu.empty() ? "" : fmt::format(" with {}", printable_line(record.gpu)),
        state_of_rank(record),
        record.note.empty() ? "" : fmt::format(", at \"{}\"", printable_line(record.note)));
    const auto skipped =
        record.operations.size() - std::min(record.operations.size(), operations_shown);
    for (auto i = skipped; i < record.operations.size(); ++i) {
      const RecordedOperation& operation = record.operations[i];
      text += fmt::format("  {:>12.3f} s {:>14}  {}\n", seconds_between(start, operation.begin),
                          duration(operation), printable_line(describe(operation)));
    }
  }
  return text;
}

}  // namespace

std::string rank_report(const std::vector<RankRecord>& records, const std::string& last_words,
                        bool operations) {
  const int size = std::ranges::max(records, {}, &RankRecord::size).size;
  const std::string sentence = last_words.empty() ? post_mortem(records, size) : last_words;
  return printable_line(sentence) + "\n" + (operations ? table(records) : "");
}

}  // namespace sluice
