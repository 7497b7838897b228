#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/process_state.h"
#include "parallel/comm/mesh.h"
#include "parallel/comm/transport/thread_transport.h"
#include "parallel/data_parallel/replicas.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/training/ranks.h"

// Whatever is wrong with how ranks were started: one line of the program on stderr, however many
// ranks there are, exit code 2, and nothing written.

namespace sluice::test::bad_ranks_test {

TEST_CASE("ranks that cannot share the batch are refused with the arithmetic") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  refused(
      runs,
      {
          {4, {{"--dp", "3"}}, {"--dp 3 needs 3 ranks, but 4 were started"}},
          {1, {{"--dp", "2"}}, {"--dp 2 needs 2 ranks", "alone", "mpirun -n 2"}},
          {4, {{"--batch-size", "6"}}, {"--batch-size 6 is not divisible by --dp 4", "1 * 4 = 4"}},
          {2,
           {{"--batch-size", "8"}, {"--micro-batch", "3"}},
           {"--batch-size 8 / --dp 2 = 4 is not divisible by --micro-batch 3", "1 * 3 = 3"}},
          {4, {{"--batch-size", "2"}}, {"--batch-size 2 is not divisible by --dp 4"}},
      });
}

TEST_CASE("flags that all ranks get wrong are refused once") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  refused(runs, {
                    {4, {{"--inject", "nonsense"}}, {"--inject nonsense", "rank=R,op=N,kind=K"}},
                    {2, {{"--inject", "rank=1,op=2,kind=fire"}}, {"there is no kind 'fire'"}},
                    {4,
                     {{"--bucketsize", "1MiB"}},
                     {"unknown flag '--bucketsize' (did you mean --bucket-size?)"}},
                    {2, {{"--zero", "3"}}, {"--zero"}},
                    {2, {{"--bucket-size", "0"}}, {"--bucket-size 0"}},
                    {4, {{"--data", runs.at("none.bin")}}, {"none.bin"}},
                });
}

TEST_CASE("ranks do not wait without bound for one that is stopped before it starts") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  // Rank 0 speaks, or the others after it had the time.
  for (const std::string stopped : {"1", "0"}) {
    CAPTURE(stopped);
    const fs::path script = runs.path() / ("stopped" + stopped);
    write_file(script, "#!/bin/sh\n[ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = " + stopped +
                           " ] && kill -STOP $$\nexec '" SLUICE_BIN_DIR "/train_gpt2' \"$@\"\n");
    fs::permissions(script, fs::perms::owner_all);
    const RanksResult result =
        runs.run(3, "late", {{"--collective-timeout", "2"}}, script.string());
    CHECK_FALSE(result.timed_out);
    CHECK((result.exit_code == 1 || (result.exit_code == 9 && launcher_kills_at_once())));
    REQUIRE(result.errors.size() == 1);
    const std::string speaker = stopped == "0" ? "rank 1" : "rank 0";
    CHECK_THAT(result.errors[0], Contains("train_gpt2: error: " + speaker +
                                          " has waited 2 seconds for all ranks to start"));
    CHECK_FALSE(fs::exists(runs.at("late")));
  }
}

TEST_CASE("ranks of one computer divide its memory") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const Json plan = Json::parse(
      run_well("plan", words("--device cpu --n-layer 1 --n-head 2 --n-embd 16 --json")));
  const auto all = plan.at("device_budget_bytes").get<std::uint64_t>();
  const Flags most{{"--host-memory", std::to_string(all / 5 * 3)}};
  runs.run_well(1, "alone", most + Flags{{"--steps", "1"}});
  refused(runs, 2, most, {"--host-memory ", "this machine has ", " to give"});
}

TEST_CASE("records of an earlier run are set aside") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const std::string files = runs.at("files");
  runs.run_well(3, "first", {{"--steps", "1"}, {"--batch-size", "6"}, {"--rank-files", files}});
  runs.run_well(2, "second", {{"--steps", "1"}, {"--rank-files", files}});
  CHECK(read_records(files).size() == 2);
  CHECK(read_records(fs::path(files) / "earlier-1").size() == 3);
  // A job that still runs keeps its folder.
  const FlightRecorder running(runs.path(), 5, 8);
  refused(runs, 2, {{"--rank-files", runs.path().string()}},
          {"another job", "rank 5", "is running", "a folder of their own"});
}

TEST_CASE("a rank that was given something else than the others is named") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  write_tokens(runs.path() / "other.bin", 1200, 64, 2);
  int scripts = 0;
  const auto odd = [&](const std::string& flag, const std::string& odd_value,
                       const std::string& value, const std::string& what) -> Refusal {
    const fs::path script = runs.path() / ("wrapper" + std::to_string(scripts++));
    write_file(script, "#!/bin/sh\nif [ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 2 ]; then v='" +
                           odd_value + "'; else v='" + value +
                           "'; fi\nexec '" SLUICE_BIN_DIR "/train_gpt2' \"$@\" \"" + flag +
                           "=$v\"\n");
    fs::permissions(script, fs::perms::owner_all);
    return {4, {{flag, "-"}}, {what}, script.string()};
  };
  const std::string host = this_process().host, here = "rank 2 on " + host,
                    first = "rank 0 on " + host,
                    others = here + " was started with other options than " + first + ": ";
  // One token between the ends of much data differs.
  write_tokens(runs.path() / "long.bin", 1'500'000, 64);
  std::string middle = read_file(runs.path() / "long.bin");
  middle[2 * 550'000] ^= 1;
  write_file(runs.path() / "middle.bin", middle);
  refused(runs,
          {odd("--data", runs.at("other.bin"), runs.at("t.bin"),
               "--data: the beginning of " + runs.at("other.bin") + " is another for " + here),
           odd("--data", runs.at("middle.bin"), runs.at("long.bin"),
               here + " has another data_checksum than " + first + ": "),
           odd("--seed", "7", "8", others + "seed=7 and seed=8"),
           odd("--data-order", "sequential", "shuffled", others + "data-order="),
           odd("--precision", "bf16", "fp32", others + "precision="),
           odd("--dropout", "0.1", "0", others + "dropout=0.1 and dropout=0")});
}

TEST_CASE("ranks whose disks hold other checkpoints of the same step do not go on from them") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  for (const char* rank : {"0", "1"}) {
    // Both are whole, and nothing that a resumed run compares by its flags differs.
    const Flags flags{{"--steps", "2"}, {"--lr", std::string("1e-") + (*rank == '0' ? "3" : "2")}};
    runs.run_well(1, std::string("disk") + rank, flags);
  }
  // Each rank has a disk of its own under the same name.
  const fs::path script = runs.path() / "wrapper";
  write_file(script, "#!/bin/sh\ncd '" + runs.at("disk") +
                         "'\"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" && exec '" SLUICE_BIN_DIR
                         "/train_gpt2' \"$@\"\n");
  fs::permissions(script, fs::perms::owner_all);
  refused(runs, 2, {{"--resume", "checkpoints/step-00000002"}, {"--steps", "4"}},
          {"rank 1 on " + this_process().host + " has another checkpoint than rank 0"},
          script.string());
}

TEST_CASE("weights that differ between ranks are found, with the rank and the tensor",
          "[threads]") {
  struct Change {
    int rank;
    const char* tensor;
    std::int64_t element;
  };
  const auto messages = [](int ranks, const std::vector<Change>& changes) {
    std::vector<TestModel> models;
    for (int rank = 0; rank < ranks; ++rank)
      models.push_back(random_model(small_config(), make_cpu_device(), DType::f32));
    for (const auto& [rank, tensor, element] : changes) {
      ParameterSpace& space = *models.at(static_cast<std::size_t>(rank)).space;
      const auto* slot = space.find(tensor);
      float value = 0;
      space.read_weights(slot->offset + element, std::as_writable_bytes(std::span(&value, 1)));
      value = std::nextafter(value, 100.0F);  // a single bit
      space.write_weights(slot->offset + element, std::as_bytes(std::span(&value, 1)));
    }
    std::mutex mutex;
    std::vector<std::string> found;
    run_on_threads(ranks, [&](std::unique_ptr<Transport> transport) {
      const auto rank = static_cast<std::size_t>(transport->rank());
      Communicator control(std::move(transport), nullptr, {});
      try {
        require_equal_weights(*models[rank].space, control, Mesh{.dp = ranks}.peers(0),
                              "after step 7");
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        found.emplace_back(error.what());
      }
    });
    return found;
  };
  CHECK(messages(3, {}).empty());
  CHECK(messages(1, {}).empty());
  const auto all_say = [](const std::vector<std::string>& found, std::size_t ranks,
                          const std::string& words) {
    REQUIRE(found.size() == ranks);
    for (const std::string& message : found)
      CHECK_THAT(message, Contains(words));
  };
  all_say(messages(4, {{2, "h.1.mlp.c_fc.weight", 5}}), 4,
          "weights of rank 2 differ from the other ranks' after step 7, in h.1.mlp.c_fc.weight");
  all_say(messages(4, {{0, "ln_f.bias", 15}}), 4, "weights of rank 0 differ from the other ranks'");
  all_say(messages(5, {{1, "ln_f.bias", 0}, {4, "ln_f.bias", 1}}), 5,
          "weights of rank 1, 4 differ");
  all_say(messages(2, {{1, "wte.weight", 1023}}), 2, "in wte.weight");
}

}  // namespace sluice::test::bad_ranks_test
