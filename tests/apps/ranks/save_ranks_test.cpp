#include "apps/checkpoint/checkpoint_history.h"
#include "apps/checkpoint/checkpoint_manifest.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/training/ranks.h"

// Ranks of train_gpt2 save files of several sections: on disks of their own, on a disk that
// refuses, and from a copy.

namespace sluice::test::save_ranks_test {
namespace {

/// Returns a program that is train_gpt2 after some lines of shell.
std::string wrapper(const RankRuns& runs, const std::string& lines) {
  const fs::path script = runs.path() / "wrapper";
  write_file(script, "#!/bin/sh\n" + lines + "\nexec '" SLUICE_BIN_DIR "/train_gpt2' \"$@\"\n");
  fs::permissions(script, fs::perms::owner_all);
  return script.string();
}

}  // namespace

TEST_CASE("ranks that see another folder than rank 0 leave the writing to those that see it") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  // A run that saves no checkpoint, and so is never resumed, may have folders that are not shared.
  const Flags flags{{"--steps", "2"},
                    {"--batch-size", "3"},
                    {"--n-embd", "256"},
                    {"--vocab-size", "5003"},
                    {"--save", "never"},
                    {"--keep-best", "true"},
                    {"--val-data", runs.at("t.bin")},
                    {"--val-every", "1"},
                    {"--val-steps", "1"}};
  runs.run_well(3, "shared", flags);
  // Rank 1 has a disk of its own under the same name.
  for (const char* disk : {"a", "b"})
    fs::create_directory(runs.path() / disk);
  Flags elsewhere = flags;
  elsewhere["--output"] = "run";
  runs.run(3, "run", elsewhere,
           wrapper(runs, "[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 1 ] && cd '" + runs.at("b") +
                             "' || cd '" + runs.at("a") + "'"))
      .require_good();
  const char* const file = "best/model.safetensors";
  CHECK((read_file(runs.path() / "a" / "run" / file) == read_file(runs.path() / "shared" / file)));
  CHECK(fs::is_empty(runs.path() / "b"));
}

TEST_CASE("all ranks that see the folder of a checkpoint write it") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  runs.run_well(
      3, "run",
      {{"--steps", "1"}, {"--batch-size", "3"}, {"--n-embd", "256"}, {"--vocab-size", "5003"}});
  const fs::path saved = runs.path() / "run" / "checkpoints" / "step-00000001";
  CHECK_NOTHROW(verify_files(saved, read_manifest(saved)));
  CHECK_THAT(read_file(runs.path() / "run" / "log.jsonl"), Contains("\"writers\":3"));
}

TEST_CASE("a copy of ranks' state is written by rank 0 and has the same bytes") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const Flags flags{
      {"--steps", "2"}, {"--n-embd", "256"}, {"--vocab-size", "5003"}, {"--zero", "1"}};
  Flags copied = flags;
  copied["--save"] = "background";
  copied["--save-every"] = "1";
  runs.run_well({{2, "together", flags}, {2, "copied", copied}});
  for (const char* file : {weights_file, optimizer_file}) {
    const fs::path name = fs::path("checkpoints") / "step-00000002" / file;
    CHECK((read_file(runs.path() / "together" / name) == read_file(runs.path() / "copied" / name)));
  }
}

TEST_CASE("a save fails if any rank cannot write, says which, and leaves the last one") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const Flags flags{{"--steps", "1"}, {"--n-embd", "256"}, {"--vocab-size", "5003"}};
  runs.run_well(2, "run", flags);
  const fs::path checkpoints = runs.path() / "run" / "checkpoints";
  const std::string before = read_file(checkpoints / "step-00000001" / "optimizer.safetensors");
  Flags longer = flags;
  longer["--steps"] = "2";
  // Files of rank 1 end at 6 MiB, counted in units of 512 bytes. Open MPI 5's shared memory is
  // larger.
  const RanksResult result = runs.run(
      2, "run", longer,
      wrapper(runs,
              "export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo; "
              "[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 1 ] && trap '' XFSZ && ulimit -f 12288"));
  INFO(result.err);
  CHECK(result.exit_code == 1);
  REQUIRE(result.errors.size() == 1);
  CHECK_THAT(result.errors[0], Contains("rank 1: cannot write ") && Contains("File too large"));
  CHECK(result.left_behind.empty());
  CHECK(list_checkpoints(checkpoints) == std::vector{checkpoints / "step-00000001"});
  CHECK((read_file(checkpoints / "step-00000001" / "optimizer.safetensors") == before));
  CHECK(std::distance(fs::directory_iterator(checkpoints), {}) == 1);
}

}  // namespace sluice::test::save_ranks_test
