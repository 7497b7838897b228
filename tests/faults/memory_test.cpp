#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/faults/runs.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

// A bit of one rank's weights flips in memory, as a faulty part would flip it. The ranks compare
// their weights from time to time, so it is found, told of, and goes into no checkpoint.

namespace sluice::test::memory_test {
namespace {

/// The memory of another process, which only some users may reach.
class Memory {
 public:
  explicit Memory(pid_t pid) : pid_(pid) {
    file_ = ::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (file_ >= 0) ::close(file_);
  }

  bool open() const { return file_ >= 0; }

  /// Flips a bit in every place that holds these bytes; how many there were.
  int flip_bit_of(const std::string& bytes, std::size_t at, int bit) const {
    std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
    int flipped = 0;
    for (std::string line; std::getline(maps, line);) {
      std::uint64_t first = 0, last = 0;
      char dash = 0;
      std::string rights;
      std::istringstream words(line);
      words >> std::hex >> first >> dash >> last >> rights;
      if (!rights.starts_with("rw") || last - first > (std::uint64_t{1} << 30)) continue;
      std::string held(last - first, '\0');
      const ssize_t got = ::pread(file_, held.data(), held.size(), static_cast<off_t>(first));
      if (got <= 0) continue;
      held.resize(static_cast<std::size_t>(got));
      for (auto found = held.find(bytes); found != std::string::npos;
           found = held.find(bytes, found + 1)) {
        const char changed = static_cast<char>(bytes[at] ^ (1 << bit));
        flipped += ::pwrite(file_, &changed, 1, static_cast<off_t>(first + found + at)) == 1;
      }
    }
    return flipped;
  }

 private:
  pid_t pid_;
  int file_;
};

}  // namespace

TEST_CASE("a bit that flips in one rank's weights is found before anything is saved") {
  if (!have_mpirun()) return;
  FaultRuns runs({"2 ranks", 2, {{"--micro-batch", "1"}}, true});
  Tally tally("j: bits flipped in memory");
  const int rounds = by_form(1, 20);
  for (int round = 0; round < rounds; ++round) {
    auto random = draws(static_cast<std::uint64_t>(round));
    // Weights that stay what they are can be found by their bytes.
    const Flags still{{"--lr", "0"}, {"--min-lr", "0"}, {"--weight-decay", "0"}};
    REQUIRE(runs.run("still", {.flags = still + Flags{{"--steps", "1"}}}).exit_code == 0);
    const std::string weights =
        read_file(runs.path() / "still/checkpoints/step-00000001/weights.safetensors");
    std::uint64_t header = 0;
    std::memcpy(&header, weights.data(), 8);
    const std::size_t floats = (weights.size() - 8 - header) / 4;
    // Takes a place in the first matrix, where all numbers are different.
    const std::size_t place = random() % std::min<std::size_t>(floats - 16, 8000);
    const std::string pattern = weights.substr(8 + header + 4 * place, 64);
    const int bit = static_cast<int>(random() % 8);

    const std::string files = runs.at("flipped.ranks");
    Job job(
        runs, "flipped",
        {.flags = still +
                  Flags{{"--steps", "1000000"}, {"--save-every", "0"}, {"--rank-files", files}}});
    const pid_t rank = process_of_rank(1, files);
    REQUIRE(eventually([&] { return steps_logged(runs.path() / "flipped") > 3; }));
    const Memory memory(rank);
    if (!memory.open()) {
      job.send(SIGKILL);
      return skip("the memory of another process cannot be reached here");
    }
    const int flipped = memory.flip_bit_of(pattern, random() % 64, bit);
    const auto before = steps_logged(runs.path() / "flipped");
    const Ended ended = job.finish(30);
    const auto after = steps_logged(runs.path() / "flipped");
    Problems problems;
    problems.require(flipped > 0, "the weights were not found in memory");
    problems.require(!ended.timed_out, "it was not found: the run went on");
    problems.require(ended.exit_code != 0, "exit code 0");
    problems.require(
        ended.words.find("rank 1") != std::string::npos && count_lines(ended.words) == 1,
        "the rank is not named: " + ended.err);
    problems.require(after <= before + 100, "it took " + std::to_string(after - before) + " steps");
    problems.require(newest_step(runs.path() / "flipped") < 0, "it was saved");
    tally.round("round " + std::to_string(round), problems.text());
    runs.forget("flipped");
    runs.forget("still");
    fs::remove_all(files);
  }
}

}  // namespace sluice::test::memory_test
