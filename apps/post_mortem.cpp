#include "parallel/post_mortem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/command_line.h"
#include "apps/train/run_program.h"
#include "engine/io/printable.h"
#include "kernels/base/error.h"
#include "parallel/ring_file.h"

namespace {

using namespace sluice;

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

/// Every rank's last operations, with when they began after the first rank's start.
void print_table(const std::vector<RankRecord>& records) {
  const std::int64_t start = std::ranges::min(records, {}, &RankRecord::started).started;
  for (const RankRecord& record : records) {
    fmt::print("\nrank {} of {}: pid {} on {}, {}{}\n", record.rank, record.size, record.id.pid,
               printable_line(record.id.host), state_of_rank(record),
               record.note.empty() ? "" : fmt::format(", at \"{}\"", printable_line(record.note)));
    const auto skipped =
        record.operations.size() - std::min(record.operations.size(), operations_shown);
    for (auto i = skipped; i < record.operations.size(); ++i) {
      const RecordedOperation& operation = record.operations[i];
      fmt::print("  {:>12.3f} s {:>14}  {}\n", static_cast<double>(operation.begin - start) * 1e-9,
                 duration(operation), printable_line(describe(operation)));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("post_mortem", [&] {
    std::string folder;
    bool all = false;
    CommandLine line(
        "post_mortem",
        "Says in one sentence why a job of several ranks did not go on, from the files "
        "that train_gpt2 --rank-files leaves.");
    line.add("folder", folder, "Folder with the ranks' files");
    line.require("folder");
    line.add("--all", all, "Print each rank's last operations too");
    if (!line.parse(argc, argv)) return 0;
    const auto records = read_rings(folder);
    if (records.empty())
      fail(fmt::format("there are no ranks' files in {}", folder), ErrorKind::usage);
    const int size = std::ranges::max(records, {}, &RankRecord::size).size;
    fmt::print("{}\n", printable_line(post_mortem(records, size)));
    if (all) print_table(records);
    return 0;
  });
}
