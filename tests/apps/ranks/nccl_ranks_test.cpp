// Jobs of ranks whose emulated GPUs exchange by NCCL, for which a library stands in (tests/nccl).
#include <cstdlib>

#include "apps/cli/sizes.h"
#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/training/ranks.h"

namespace sluice::test::nccl_ranks_test {
namespace {

/// Gives every rank a GPU, and NCCL to all; `options` are those of the stand-in.
void give_nccl(const RankRuns& runs, const std::string& options) {
  ::setenv("LD_LIBRARY_PATH", SLUICE_BIN_DIR "/../nccl", 1);
  ::setenv("SLUICE_SIMT_GPU_EACH", "1", 1);
  ::setenv("SLUICE_NCCL_STANDIN", (options + " folder=" + runs.path().string()).c_str(), 1);
}

struct Layout {
  int ranks;
  Flags flags;
  std::string standin;
};

}  // namespace

TEST_CASE("NCCL trains as the way through the host does, bit for bit") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  ByteTokenizer().save(runs.path() / "bytes");
  // A GPU has room for one kernel of NCCL.
  const Layout layouts[] = {
      {2, {{"--dp", "2"}}, "seed=1 resident=1"},
      {3, {{"--dp", "3"}, {"--batch-size", "6"}}, "seed=2 resident=1"},
      {2, {{"--dp", "2"}, {"--zero", "1"}}, "seed=3 resident=1"},
      {2, {{"--tp", "2"}}, "seed=4 resident=1"},
      {4, {{"--dp", "2"}, {"--tp", "2"}, {"--zero", "1"}}, "seed=5 resident=1 polls=0"},
      {2, {{"--tp", "2"}, {"--optimizer", "muon"}}, "seed=12 resident=1"},
      {4, {{"--dp", "2"}, {"--tp", "2"}, {"--optimizer", "muon"}}, "seed=14 resident=1"},
      {4,
       {{"--dp", "2"}, {"--tp", "2"}, {"--zero", "1"}, {"--optimizer", "muon"}},
       "seed=13 resident=1"},
      {2,
       {{"--pp", "2"},
        {"--vocab-size", "256"},
        {"--tokenizer-dir", runs.at("bytes")},
        {"--val-data", runs.at("t.bin")},
        {"--val-every", "1"},
        {"--val-steps", "1"},
        {"--sample-every", "1"},
        {"--sample-tokens", "3"}},
       "seed=6 resident=1"},
      {3, {{"--pp", "3"}, {"--n-layer", "3"}, {"--pipeline", "zb-h1"}}, "seed=7 resident=1"},
      {2,
       {{"--pp", "2"}, {"--n-layer", "4"}, {"--pipeline", "interleaved*2"}},
       "seed=8 resident=1"},
      {8,
       {{"--dp", "2"}, {"--pp", "2"}, {"--tp", "2"}, {"--zero", "2"}, {"--n-layer", "4"}},
       "seed=9 resident=1"},
      {2,
       {{"--dp", "2"}, {"--zero", "2"}, {"--n-layer", "5"}, {"--micro-batch", "1"}},
       "seed=10 resident=1"},
      {4,
       {{"--dp", "2"},
        {"--pp", "2"},
        {"--zero", "2"},
        {"--n-layer", "4"},
        {"--micro-batch", "1"},
        {"--pipeline", "zb-h1"}},
       "seed=11 resident=1"},
  };
  int number = 0;
  for (const Layout& layout : layouts) {
    const Flags gpu =
        layout.flags + Flags{{"--device", "cuda"}, {"--precision", "bf16"}, {"--steps", "3"}};
    CAPTURE(shown(layout.ranks, gpu));
    give_nccl(runs, layout.standin);
    const std::string name = "r" + std::to_string(number++);
    const RanksResult direct =
        runs.run(layout.ranks, name + "n", gpu + Flags{{"--communication", "nccl"}});
    direct.require_good();
    CHECK(direct.out.find("nccl 2.18.0: one GPU for each") != std::string::npos);
    runs.run_well(layout.ranks, name + "s", gpu + Flags{{"--communication", "staged"}});
    CHECK(trained_files(runs.at(name + "n")) == trained_files(runs.at(name + "s")));
  }
}

TEST_CASE("what NCCL takes of a GPU's memory is taken first and counts for the budget") {
  if (!have_mpirun()) return;
  // A group's collectives take as much, and its messages to each other rank.
  constexpr std::size_t each = 3 << 20;
  const RankRuns runs;
  give_nccl(runs, "seed=1 resident=1 memory=" + std::to_string(each));
  struct Job {
    int ranks;
    Flags flags;
    std::size_t taken;
  };
  const Job jobs[] = {
      {2, {{"--dp", "2"}}, 2 * each},
      // Outputs, gradients and the tied table are those of one group of two ranks.
      {2, {{"--pp", "2"}}, 2 * each},
      {4, {{"--dp", "2"}, {"--tp", "2"}}, 4 * each},
      // In a ring of three ranks each sends to one and receives from another one.
      {3, {{"--dp", "3"}, {"--batch-size", "6"}}, 3 * each},
  };
  int number = 0;
  for (const auto& [ranks, flags, taken] : jobs) {
    const Flags gpu = flags + Flags{{"--device", "cuda"}, {"--steps", "1"}};
    CAPTURE(shown(ranks, gpu));
    const auto run = [&, count = ranks](const std::string& communication,
                                        const std::string& budget) {
      return runs.run(count, "m" + std::to_string(number++),
                      gpu + Flags{{"--communication", communication}, {"--gpu-memory", budget}});
    };
    const auto least = [&](const std::string& communication) -> std::size_t {
      const RanksResult refused = run(communication, "1MiB");
      CHECK(refused.exit_code == 2);
      REQUIRE(refused.errors.size() == 1);
      const std::string& error = refused.errors[0];
      CHECK((error.find(" and " + std::to_string(taken) + " for NCCL, ") != std::string::npos) ==
            (communication == "nccl"));
      const std::string flag = "--gpu-memory ";
      const std::size_t at = error.find(flag);
      REQUIRE(at != std::string::npos);
      const std::size_t begin = at + flag.size();
      return parse_bytes(flag, error.substr(begin, error.find(' ', begin) - begin));
    };
    const std::size_t direct = least("nccl");
    CHECK(direct == least("staged") + taken);
    CHECK(run("nccl", std::to_string(direct - taken)).exit_code == 2);
    const RanksResult fits = run("nccl", std::to_string(direct));
    fits.require_good();
    CHECK_THAT(fits.out, Contains(std::to_string(taken >> 20) + " MiB of GPU memory"));
  }
}

TEST_CASE("a job on NCCL in which a rank fails ends with a sentence, though a GPU waits for ever") {
  if (!have_mpirun()) return;
  struct Fault {
    std::string kind, sentence;
    std::string timeout = "1000";  // so that it is not the timeout that ends the job
  };
  const Fault faults[] = {
      {"kill", "was killed or exited without a word"},
      {"count", "have lost each other"},
      {"slow", "has not started", "2"},
  };
  const RankRuns runs;
  give_nccl(runs, "seed=1 resident=1");
  for (const auto& [kind, sentence, timeout] : faults) {
    CAPTURE(kind);
    const RanksResult result = runs.run(2, kind,
                                        {{"--tp", "2"},
                                         {"--device", "cuda"},
                                         {"--communication", "nccl"},
                                         {"--steps", "500"},
                                         {"--collective-timeout", timeout},
                                         {"--inject", "rank=1,op=200,kind=" + kind}});
    INFO(result.err);
    CHECK_FALSE(result.timed_out);
    CHECK(result.exit_code != 0);
    CHECK(result.left_behind.empty());
    if (kind == "kill" && launcher_kills_at_once()) continue;
    REQUIRE(result.errors.size() == 1);
    CHECK_THAT(result.errors[0], Contains(sentence) && Contains("rank 1"));
  }
}

}  // namespace sluice::test::nccl_ranks_test
