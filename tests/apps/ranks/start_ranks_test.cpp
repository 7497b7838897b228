#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>

#include "apps/data/same_files.h"
#include "engine/process_state.h"
#include "kernels/base/error.h"
#include "parallel/comm/transport/thread_transport.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/process/child.h"
#include "tests/support/skip.h"
#include "tests/support/training/ranks.h"

// Ranks compare what they see before they train: another folder, other data or another program on
// one of the hosts. Here they are started in folders of their own, which stand for disks.

namespace sluice::test::start_ranks_test {
namespace {

/// Returns "rank 1 on HOST".
std::string place(int rank) {
  return "rank " + std::to_string(rank) + " on " + this_process().host;
}

/// Gives each rank a folder of its own, disk0 and disk1, in which it is started.
class Disks : public RankRuns {
 public:
  Disks() {
    for (const char* disk : {"disk0", "disk1"})
      fs::create_directory(path() / disk);
    write_file(path() / "wrapper",
               "#!/bin/sh\ncd '" + at("disk") +
                   "'\"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" && exec '" SLUICE_BIN_DIR
                   "/train_gpt2' \"$@\"\n");
    fs::permissions(path() / "wrapper", fs::perms::owner_all);
  }

  std::string wrapper() const { return at("wrapper"); }
  fs::path disk(int rank) const { return path() / ("disk" + std::to_string(rank)); }

  /// Requires that the job is refused in one line with these words.
  void refused_here(const Flags& flags, const std::vector<std::string>& words) const {
    const RanksResult result = run(2, "none", flags, wrapper());
    INFO(shown(2, flags));
    INFO(result.err);
    CHECK(result.exit_code == 2);
    REQUIRE(result.errors.size() == 1);
    CHECK(result.errors[0].size() <= 300);
    for (const std::string& word : words)
      CHECK_THAT(result.errors[0], Contains(word));
  }
};

/// All files and folders with the files' contents.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    all[entry.path().lexically_relative(folder).string()] =
        entry.is_regular_file() ? read_file(entry.path()) : "";
  return all;
}

}  // namespace

TEST_CASE("a run that saves is refused where a rank does not see its folder", "[start]") {
  if (!have_mpirun()) return;
  const Disks disks;
  const auto refused = [&](const std::string& output) {
    disks.refused_here({{"--output", output}, {"--steps", "1"}},
                       {"--output " + output + ": " + place(1) + " does not see what " + place(0) +
                        " writes there; it must lie in a folder that all hosts share"});
  };
  // No folder is there, or folders of one name on both disks.
  refused("a/b/run");
  CHECK(fs::is_empty(disks.disk(0)));
  CHECK(fs::is_empty(disks.disk(1)));
  for (const int rank : {0, 1})
    fs::create_directory(disks.disk(rank) / "run");
  refused("run");
  for (const int rank : {0, 1})
    CHECK(fs::is_empty(disks.disk(rank) / "run"));
  // One disk under two names is one.
  fs::remove(disks.disk(1) / "run");
  fs::create_directory_symlink(disks.disk(0) / "run", disks.disk(1) / "run");
  disks.run(2, "shared", {{"--output", "run"}, {"--steps", "1"}}, disks.wrapper()).require_good();
  for (const auto& [name, bytes] : contents(disks.disk(0)))
    CHECK_THAT(name, !Contains(".sluice-start"));
}

TEST_CASE("a checkpoint that a rank does not see is not called damaged", "[start]") {
  if (!have_mpirun()) return;
  const Disks disks;
  disks.run_well(1, "disk0/run", {{"--steps", "1"}});
  const auto before = contents(disks.disk(0));
  const std::string sees = " does not see run/checkpoints/step-00000001, which " + place(0) +
                           " sees; give a folder that all hosts share";
  const Flags more{{"--steps", "2"}};
  disks.refused_here(more + Flags{{"--output", disks.at("new")}, {"--resume", "run"}},
                     {"--resume: " + place(1) + sees});
  disks.refused_here(more + Flags{{"--output", "run"}, {"--save", "never"}},
                     {"--resume: " + place(1) + sees});
  disks.refused_here(more + Flags{{"--output", "run"}}, {"--output run: " + place(1)});
  CHECK((contents(disks.disk(0)) == before));
  CHECK(fs::is_empty(disks.disk(1)));
  CHECK_FALSE(fs::exists(disks.path() / "new"));
}

TEST_CASE("data that differ between ranks are named with file, rank and host", "[start]") {
  if (!have_mpirun()) return;
  const Disks disks;
  const std::string here = place(1), first = place(0);
  write_tokens(disks.disk(0) / "t.bin", 1'500'000, 64);
  const std::string good = read_file(disks.disk(0) / "t.bin");
  const auto refused = [&](const std::string& sentence) {
    disks.refused_here({{"--data", "t.bin"}, {"--steps", "1"}},
                       {sentence, "; give all hosts the same files"});
  };
  refused("--data: " + here + " does not see what " + first + " sees: ");
  write_file(disks.disk(1) / "t.bin", good.substr(0, good.size() - 2));
  refused("--data: t.bin has 2999998 bytes for " + here + " and 3000000 for " + first);
  const auto change = [&](std::size_t at) {
    std::string other = good;
    other[at] ^= 1;
    write_file(disks.disk(1) / "t.bin", other);
  };
  for (const std::size_t at : {std::size_t{0}, std::size_t{(1 << 20) - 2}}) {
    change(at);
    refused("--data: the beginning of t.bin is another for " + here + " than for " + first);
  }
  for (const std::size_t at : {good.size() - (1 << 20), good.size() - 2}) {
    change(at);
    refused("--data: the end of t.bin is another for " + here + " than for " + first);
  }
  // What is between is read later.
  change(good.size() / 8 * 3);
  disks.refused_here({{"--data", "t.bin"}, {"--steps", "1"}},
                     {here + " has another data_checksum than " + first + ": "});
  // The names may differ.
  write_file(disks.disk(1) / "t.bin", good);
  for (const int rank : {0, 1})
    fs::create_directory(disks.disk(rank) / "texts");
  for (const char* file : {"disk0/texts/a.txt", "disk0/texts/b.txt", "disk1/texts/a.txt"})
    write_file(disks.path() / file, std::string(5000, 'a'));
  const Flags texts{{"--data", "texts"}, {"--vocab-size", "-"}, {"--tokenizer", "bytes"}};
  disks.refused_here(texts, {"--data: " + here + " sees 1 file and " + first + " 2; give"});
  write_file(disks.disk(1) / "texts/c.txt", std::string(5000, 'a'));
  disks.run(2, "good", texts + Flags{{"--steps", "1"}}, disks.wrapper()).require_good();
  write_tokens(disks.disk(0) / "v.bin", 1200, 64);
  disks.refused_here({{"--data", "t.bin"}, {"--val-data", "v.bin"}},
                     {"--val-data: " + here + " does not see what " + first + " sees: "});
}

TEST_CASE("a model that differs between ranks is named", "[start]") {
  if (!have_mpirun()) return;
  const Disks disks;
  for (const int rank : {0, 1})
    write_model(disks.disk(rank) / "m", small_config());
  const Flags flags{{"--model", "m"},      {"--n-layer", "-"}, {"--n-head", "-"}, {"--n-embd", "-"},
                    {"--vocab-size", "-"}, {"--context", "-"}, {"--steps", "1"},  {"--pp", "2"}};
  // Stages of a pipeline have no weights in common, so nothing else compares them.
  std::string weights = read_file(disks.disk(1) / "m/model.safetensors");
  weights.back() ^= 1;
  write_file(disks.disk(1) / "m/model.safetensors", weights);
  disks.refused_here(flags, {"--model: the ", "m/model.safetensors is another for " + place(1)});
  fs::remove_all(disks.disk(1) / "m");
  disks.refused_here(flags, {"--model: " + place(1) + " sees 0 files and " + place(0) + " 2"});
}

TEST_CASE("two builds of a program do not train together", "[start]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  // Another build has another ID, by which the linker marks what it has made.
  const std::string note("\4\0\0\0\24\0\0\0\3\0\0\0GNU\0", 16);
  for (const char* program : {"train_gpt2", "evaluate"}) {
    std::string bytes = read_file(fs::path(SLUICE_BIN_DIR) / program);
    const std::size_t at = bytes.find(note);
    if (at == std::string::npos) return skip("the linker gives programs no build ID");
    bytes[at + note.size()] ^= 1;
    write_file(runs.path() / program, bytes);
    fs::permissions(runs.path() / program, fs::perms::owner_all);
    write_file(runs.path() / "either",
               "#!/bin/sh\n[ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 1 ] && exec '" +
                   runs.at(program) + "' \"$@\"\nexec '" SLUICE_BIN_DIR "/" + program +
                   "' \"$@\"\n");
    fs::permissions(runs.path() / "either", fs::perms::owner_all);
    const RanksResult result = runs.run(2, "run", {}, runs.at("either"));
    INFO(result.err);
    CHECK_FALSE(fs::exists(runs.at("run")));
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains(std::string(program) + ": error: " + place(1) +
                                    " has another program than " + place(0) + ": ") &&
                               Contains("; start the same file on all hosts\n"));
  }
}

TEST_CASE("of very many files the sizes are compared, and of the first thousand their ends",
          "[start][threads]") {
  const TempDir dir;
  constexpr std::size_t files = 1100;
  std::vector<FilesOfFlag> seen(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const fs::path folder = dir.path() / std::to_string(rank);
    fs::create_directory(folder);
    seen[rank].flag = "--data";
    for (std::size_t i = 0; i < files; ++i) {
      seen[rank].files.push_back(folder / std::to_string(i));
      write_file(seen[rank].files.back(), "text " + std::to_string(i));
    }
  }
  const auto messages = [&] {
    std::mutex mutex;
    std::vector<std::string> said;
    run_on_threads(2, [&](std::unique_ptr<Transport> transport) {
      const auto rank = static_cast<std::size_t>(transport->rank());
      Communicator ranks(std::move(transport), nullptr, {});
      try {
        require_same_files(ranks, {seen[rank]});
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        said.emplace_back(error.what());
      }
    });
    return said;
  };
  CHECK(messages().empty());
  write_file(seen[1].files[1099], "TEXT 1099");
  CHECK(messages().empty());
  write_file(seen[1].files[1050], "text");
  const auto size = messages();
  REQUIRE(size.size() == 2);
  CHECK(size[0] == size[1]);
  CHECK_THAT(size[0], Contains("/1/1050 has 4 bytes for " + place(1) + " and 9 for " + place(0)));
  write_file(seen[1].files[999], "TEXT 999");
  const auto end = messages();
  REQUIRE(end.size() == 2);
  CHECK_THAT(end[1], Contains("the beginning of ") && Contains("/1/999 is another for "));
}

TEST_CASE("records that a failed job has left for a day are removed, those of a running one stay",
          "[start]") {
  if (!have_mpirun()) return;
  const fs::path memory = "/dev/shm/sluice-ranks-test-" + std::to_string(::getpid());
  const fs::path old = memory.string() + "-old", running = memory.string() + "-running";
  for (const fs::path& folder : {old, running})
    fs::create_directory(folder);
  Child([&] {
    FlightRecorder(old, 0, 1).fail("disk full");
    return 0;
  }).reap();
  const FlightRecorder mine(running, 0, 1);
  for (const fs::path& folder : {old, running})
    fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::hours(25));
  const RankRuns runs;
  runs.run_well(2, "out", {{"--steps", "1"}});
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::exists(running));
  fs::remove_all(running);
}

}  // namespace sluice::test::start_ranks_test
