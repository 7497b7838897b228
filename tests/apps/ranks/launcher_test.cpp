#include <csignal>
#include <fstream>
#include <sstream>

#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/training/ranks.h"

// Ranks that scripts/launch starts: what they listen to, and how they end with it; and a rank whose
// record somebody cuts.

namespace sluice::test::launcher_test {
namespace {

/// Ports that a process listens to, by its descriptors: "1B9E" of "00000000:1B9E", and on what.
std::vector<std::string> listens_to(pid_t process) {
  std::vector<std::string> sockets, addresses;
  std::error_code error;
  const fs::path proc = "/proc/" + std::to_string(process);
  for (const auto& entry : fs::directory_iterator(proc / "fd", error)) {
    const std::string link = fs::read_symlink(entry.path(), error).string();
    if (link.starts_with("socket:[")) sockets.push_back(link.substr(8, link.size() - 9));
  }
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    std::ifstream file(proc / table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state, skipped, inode;
      fields >> number >> local >> remote >> state;
      for (int i = 0; i < 6 && fields >> inode; ++i)
        skipped += inode;
      if (state == "0A" && std::ranges::find(sockets, inode) != sockets.end())
        addresses.push_back(local);
    }
  }
  return addresses;
}

/// A job of two ranks that would go on for ever, by scripts/launch.
struct Launched : RankRuns {
  Launched() {
    Arguments all{"TMPDIR=" + path().string(), SLUICE_SOURCE_DIR "/scripts/launch"};
    all.insert(all.end(), {"-n", "2", "--bin", SLUICE_BIN_DIR, "train_gpt2"});
    for (const auto& [flag, value] :
         flags("out",
               {{"--steps", "1000000"}, {"--log-every", "1000000"}, {"--rank-files", at("ranks")}}))
      all.insert(all.end(), {flag, value});
    fs::create_directory(at("ranks"));
    job.emplace("/usr/bin/env", all);
    for (int rank : {0, 1})
      ranks.push_back(process_of_rank(rank, at("ranks")));
    REQUIRE(eventually([&] { return fs::exists(path() / "out/log.jsonl"); }));
    REQUIRE(eventually([&] { return logged_losses(path() / "out").size() > 3; }));
  }
  std::optional<RunningProgram> job;
  std::vector<pid_t> ranks;
};

}  // namespace

TEST_CASE("ranks on this machine listen to no network", "[row20]") {
  if (!have_mpirun()) return;
  if (mpirun_flags().empty()) return skip("MPICH's ranks inherit a socket of their launcher");
  const Launched launched;
  for (const pid_t rank : launched.ranks)
    for (const std::string& address : listens_to(rank)) {
      CAPTURE(address);
      CHECK(address.starts_with("0100007F:"));  // 127.0.0.1
    }
  // The test can see a port: mpirun has that which ranks reach it by.
  std::ifstream stat("/proc/" + std::to_string(launched.ranks[0]) + "/stat");
  std::string number, name, state;
  pid_t parent = 0;
  stat >> number >> name >> state >> parent;
  CHECK_FALSE(listens_to(parent).empty());
}

TEST_CASE("ranks end with their launcher, however that ends", "[row21]") {
  if (!have_mpirun()) return;
  Launched launched;
  launched.job->send(SIGKILL);
  launched.job->finish();
  CHECK(eventually([&] { return processes_with(launched.at("out")).empty(); }));
}

TEST_CASE("a rank whose record is cut goes on", "[row18]") {
  if (!have_mpirun()) return;
  Launched launched;
  const auto file = record_path(launched.at("ranks"), 1);
  REQUIRE(read_record(file));
  fs::resize_file(file, 0);
  const std::size_t steps = logged_losses(launched.path() / "out").size();
  CHECK(eventually([&] { return logged_losses(launched.path() / "out").size() > steps; }));
  launched.job->send(SIGINT);
  const ProgramResult result = launched.job->finish();
  INFO(result.err);
  CHECK(result.exit_code == 0);
}

}  // namespace sluice::test::launcher_test
