// Which GPU a rank computes on, and which part of its memory it has. The GPUs are emulated.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/process_state.h"
#include "tests/support/catch.h"
#include "tests/support/training/ranks.h"

namespace sluice::test::gpu_ranks_test {
namespace {

/// Starts train_gpt2 or another program so that the ranks see these GPUs, each its own list.
std::string seeing(const RankRuns& runs, const std::vector<std::string>& gpus,
                   const std::string& program = "train_gpt2") {
  static int number = 0;
  const fs::path script = runs.path() / ("seeing" + std::to_string(number++));
  std::string cases;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank)
    cases += std::to_string(rank) + ") SLUICE_SIMT_GPU_EACH='" + gpus[rank] + "' ;;\n";
  write_file(script, "#!/bin/sh\ncase ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in\n" + cases +
                         "esac\nexport SLUICE_SIMT_GPU_EACH\nexec '" SLUICE_BIN_DIR "/" + program +
                         "' \"$@\"\n");
  fs::permissions(script, fs::perms::owner_all);
  return script.string();
}

}  // namespace

TEST_CASE("only ranks that share a GPU divide its memory", "[gpu_ranks]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const auto all =
      nlohmann::json::parse(run_well("plan", words("--device cuda --n-layer 1 --n-head "
                                                   "2 --n-embd 16 --json")))
          .at("device_budget_bytes")
          .get<std::uint64_t>();
  const std::string gpu = "GPU-11111111", other = "GPU-22222222";
  // The budget asks for more than a half, and for more than a third.
  const Flags half{{"--device", "cuda"}, {"--gpu-memory", std::to_string(all / 5 * 3)}};
  const Flags third{{"--device", "cuda"}, {"--gpu-memory", std::to_string(all / 5 * 2)}};
  struct Job {
    std::vector<std::string> gpus;  ///< that each rank sees
    Flags flags;
    std::string refusal{};  ///< whose GPU is too small; "": none is
  };
  const std::string host = this_process().host;
  const std::vector<Job> jobs{
      {{gpu, other}, half},
      {{gpu + "," + other, gpu + "," + other}, half},
      {{gpu + "," + other, other}, half},
      {{gpu, gpu}, half, "rank 0 on " + host + ", " + gpu + " for 2 ranks has "},
      {{gpu, other, other}, half, "rank 1 on " + host + ", " + other + " for 2 ranks has "},
      {{gpu, other, other}, third},
      {{gpu, gpu, gpu}, third, "rank 0 on " + host + ", " + gpu + " for 3 ranks has "},
  };
  int number = 0;
  for (const auto& [gpus, flags, refusal] : jobs) {
    const int ranks = static_cast<int>(gpus.size());
    const Flags given = flags + Flags{{"--batch-size", std::to_string(ranks)},
                                      {"--steps", "1"},
                                      {"--communication", "staged"}};
    std::string names;
    for (const std::string& each : gpus)
      names += each + " ";
    INFO(names << shown(ranks, given));
    const RanksResult result =
        runs.run(ranks, "j" + std::to_string(number++), given, seeing(runs, gpus));
    if (refusal.empty()) {
      result.require_good();
      continue;
    }
    INFO(result.err);
    CHECK(result.exit_code == 2);
    REQUIRE(result.errors.size() == 1);
    CHECK_THAT(result.errors[0], Contains(refusal) && Contains(" to give"));
  }
}

TEST_CASE("ranks that see the same GPUs take turns, and those that see their own take them",
          "[gpu_ranks]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  ::setenv("LD_LIBRARY_PATH", SLUICE_BIN_DIR "/../nccl", 1);
  ::setenv("SLUICE_NCCL_STANDIN", ("seed=1 resident=1 folder=" + runs.path().string()).c_str(), 1);
  const auto exchange = [&](const std::vector<std::string>& gpus) {
    static int number = 0;
    const RanksResult result = runs.run(
        static_cast<int>(gpus.size()), "e" + std::to_string(number++),
        {{"--device", "cuda"}, {"--steps", "1"}, {"--communication", "auto"}}, seeing(runs, gpus));
    result.require_good();
    const std::size_t at = result.out.find("exchange ");
    return at == std::string::npos ? "" : result.out.substr(at, result.out.find('\n', at) - at);
  };
  const std::string shared = " share the GPU GPU-a of ";
  CHECK_THAT(exchange({"GPU-a", "GPU-a"}), Contains("ranks 0 and 1" + shared));
  CHECK_THAT(exchange({"GPU-a,GPU-b", "GPU-a,GPU-b", "GPU-a,GPU-b", "GPU-a,GPU-b"}),
             Contains("ranks 0 and 2" + shared));
  for (const char* second : {"GPU-b", "GPU-a,GPU-b", "GPU-b,GPU-a"})
    CHECK_THAT(exchange({"GPU-a,GPU-b", second}), Contains(": one GPU for each of 2 ranks"));
  CHECK_THAT(exchange({"GPU-a,GPU-b", "GPU-a"}), Contains("ranks 0 and 1" + shared));
}

}  // namespace sluice::test::gpu_ranks_test
