#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/training/ranks.h"

// Jobs whose ranks divide the matrices of a model, alone and together with replicas and pipelines:
// the training of one process, to rounding.

namespace sluice::test::tensor_ranks_test {
namespace {

using Losses = std::map<std::int64_t, double>;

void require_near(const Losses& losses, const Losses& expected) {
  REQUIRE(losses.size() == expected.size());
  for (const auto& [step, loss] : expected) {
    INFO("step " << step);
    CHECK(losses.at(step) == Approx(loss).epsilon(1e-5));
  }
}

const std::int64_t steps = by_form(6, 25), half_way = by_form(3, 10);

/// A model of which every axis can have two ranks, and two stages each.
const Flags four_blocks{{"--n-layer", "4"},
                        {"--n-head", "4"},
                        {"--batch-size", "8"},
                        {"--micro-batch", "2"},
                        {"--steps", std::to_string(steps)},
                        {"--dropout", "0.1"},
                        {"--grad-clip", "1"}};

const Flags interleaved{{"--pipeline", "interleaved*2"}};

}  // namespace

TEST_CASE("ranks that divide the matrices follow the reference's trajectory", "[tensor]") {
  if (!have_mpirun()) return;
  struct Row {
    const char* name;
    int ranks;
    Flags flags;
  };
  const std::vector<Row> rows{
      {"tiny", 2, {{"--tp", "2"}}},
      {"odd", 2, {{"--tp", "2"}}},
      {"odd", 4, {{"--tp", "4"}}},
      {"odd", 5, {{"--tp", "5"}}},
      {"tiny", 8, {{"--tp", "2"}, {"--pp", "2"}, {"--dp", "2"}, {"--zero", "1"}}}};
  const std::string folder = GENERATE(from_range(fixture_folders()));
  if (!long_form() && folder != fixture_folders().front()) return;
  const RankRuns runs;
  std::vector<RankJob> jobs;
  for (const auto& [name, ranks, flags] : rows)
    jobs.push_back({ranks, std::to_string(jobs.size()) + " " + name,
                    reference_flags(Fixture(folder, name)) + flags});
  runs.run_well(jobs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [name, ranks, flags] = rows[i];
    const Fixture fixture(folder, name);
    INFO(folder << "/" << name << ": " << shown(ranks, flags));
    const std::string& output = jobs[i].output;
    const Losses losses = logged_losses(runs.path() / output);
    const Json& trajectory = fixture.json().at("trajectory");
    REQUIRE(losses.size() == trajectory.size());
    for (std::size_t k = 0; k < trajectory.size(); ++k)
      CHECK(losses.at(static_cast<std::int64_t>(k) + 1) ==
            Approx(trajectory.at(k).at("loss").get<double>()).margin(1e-5));
  }
}

TEST_CASE("every pair of axes, and all three, train as one process", "[tensor]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  struct Row {
    int ranks;
    Flags flags;
  };
  std::vector<Row> rows{
      {1, {}},
      {4, {{"--dp", "2"}, {"--tp", "2"}, {"--zero", "1"}}},
      {4, {{"--pp", "2"}, {"--tp", "2"}, {"--stash", "input"}, {"--placement", "auto:block"}}},
      {4, {{"--dp", "2"}, {"--pp", "2"}, {"--zero", "1"}}},
      {4, Flags{{"--pp", "2"}, {"--tp", "2"}, {"--pipeline", "zb-h1"}}},
      {8, Flags{{"--dp", "2"}, {"--pp", "2"}, {"--tp", "2"}, {"--zero", "1"}} + interleaved},
      {4, {{"--tp", "4"}, {"--sequence-parallel", "true"}}},
      {8, Flags{{"--dp", "2"}, {"--pp", "2"}, {"--tp", "2"}, {"--sequence-parallel", "true"}} +
              interleaved},
  };
  if (long_form()) {  // with less than rows above have
    rows.push_back({4, {{"--dp", "2"}, {"--tp", "2"}}});
    rows.push_back({4, {{"--pp", "2"}, {"--tp", "2"}}});
  }
  std::vector<RankJob> jobs;
  for (const auto& [ranks, flags] : rows)
    jobs.push_back({ranks, std::to_string(jobs.size() + 100),
                    four_blocks + flags + Flags{{"--save", "never"}}});
  runs.run_well(jobs);
  const Losses expected = logged_losses(runs.path() / jobs[0].output);
  REQUIRE(expected.size() == static_cast<std::size_t>(steps));
  CHECK(expected.at(steps) < expected.at(1));
  for (const RankJob& job : jobs) {
    INFO(shown(job.ranks, job.changes));
    require_near(logged_losses(runs.path() / job.output), expected);
  }
}

TEST_CASE("a checkpoint of one layout goes on in another", "[tensor]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const std::string saved = fmt::format("step-{:08}", half_way);
  const Flags half =
      four_blocks + Flags{{"--save-every", std::to_string(half_way)}, {"--keep", "3"}};
  const Flags all{{"--dp", "2"}, {"--pp", "2"}, {"--tp", "2"}, {"--zero", "1"}};
  struct Row {
    int ranks;
    Flags flags;
  };
  // The model that is exported is as good as one process's, wherever it was trained.
  const std::vector<std::pair<Row, Row>> rows{
      {{8, all + interleaved}, {1, {}}},
      {{8, all}, {4, {{"--tp", "4"}}}},
      {{1, {}}, {4, {{"--pp", "2"}, {"--tp", "2"}}}},
      {{2, {{"--tp", "2"}}}, {2, {{"--pp", "2"}}}},
  };
  std::vector<RankJob> before, after;
  for (const auto& [first, second] : rows) {
    const std::string from = "from " + std::to_string(before.size());
    before.push_back({first.ranks, from, half + first.flags});
    after.push_back({second.ranks, "after " + std::to_string(after.size()),
                     four_blocks + second.flags +
                         Flags{{"--resume", runs.at(from + "/checkpoints/" + saved)}}});
  }
  runs.run_well(before);
  runs.run_well(after);
  Losses rest = logged_losses(runs.path() / "from 2");  // of one process
  REQUIRE(rest.size() == static_cast<std::size_t>(steps));
  rest.erase(rest.begin(), rest.upper_bound(half_way));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [first, second] = rows[i];
    INFO(shown(first.ranks, first.flags) << ", then " << shown(second.ranks, second.flags));
    require_near(logged_losses(runs.path() / after[i].output), rest);
    CHECK_FALSE(trained_files(runs.path() / after[i].output).model.empty());
  }
}

TEST_CASE("narrow state of uneven shards is kept as that of the whole", "[tensor]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  // Only one shard of these matrices is as large as matrices with narrow moments.
  const Flags uneven{
      {"--n-head", "5"}, {"--n-embd", "90"}, {"--state-layout", "bf16m"}, {"--precision", "bf16"}};
  runs.run_well(2, "two", uneven + Flags{{"--tp", "2"}, {"--steps", "4"}});
  const Flags on{{"--steps", "8"}, {"--resume", runs.at("two/checkpoints/step-00000004")}};
  runs.run_well(1, "one", uneven + on);
  runs.run_well(3, "three", uneven + on + Flags{{"--tp", "3"}});
  CHECK(logged_losses(runs.path() / "one").at(8) ==
        Approx(logged_losses(runs.path() / "three").at(8)).epsilon(1e-3));
}

TEST_CASE("a rank of a GPU and its neighbours divide a model through the host's memory",
          "[tensor][device]") {
  if (!have_mpirun() || device_kinds().size() < 2) return;
  const RankRuns runs;
  const Flags five{{"--steps", "5"}, {"--precision", "fp32"}, {"--n-head", "2"}};
  runs.run_well(1, "one", five);
  const Flags gpu{{"--device", "cuda"}, {"--tp", "2"}, {"--gpu-memory", "64MiB"}};
  runs.run_well(2, "two", five + gpu);
  require_near(logged_losses(runs.path() / "two"), logged_losses(runs.path() / "one"));
}

TEST_CASE("ranks tell of the whole model and how they divide it, and config.toml starts them again",
          "[tensor]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const Flags four{{"--steps", "3"}, {"--tp", "2"}, {"--pp", "2"}};
  const RanksResult divided = runs.run(4, "four", four);
  divided.require_good();
  const std::string parameters = "28.0k parameters";  // of the whole: 64, 16 and 2 blocks of 32
  CHECK_THAT(divided.out, Contains(parameters) && Contains("4: dp 1 x pp 2 x tp 2, 4 sequences"));
  CHECK_THAT(runs.run(1, "one", {{"--steps", "3"}}).out, Contains(parameters));
  const std::string log = read_file(runs.path() / "four" / "log.jsonl");
  const Json start = Json::parse(log.substr(0, log.find('\n')));
  CHECK(start.at("parameters") == 64 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32);
  CHECK(start.at("mesh") == Json{{"dp", 1}, {"pp", 2}, {"tp", 2}});
  Flags again{{"--config", runs.at("four/config.toml")}, {"--output", runs.at("again")}};
  for (const auto& [flag, value] : runs.flags("", {}))
    again.emplace(flag, "-");
  runs.run_well(4, "again", again);
  CHECK((trained_files(runs.path() / "again") == trained_files(runs.path() / "four")));
}

TEST_CASE("ranks that cannot divide a model are told why", "[tensor][bad]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const Flags odd{{"--n-layer", "2"}, {"--n-head", "3"}, {"--n-embd", "18"}};
  refused(runs,
          {{4, odd + Flags{{"--tp", "4"}}, {"--tp 4", "3 heads", "--tp 1, 2, 3"}},
           {3, {{"--n-head", "4"}, {"--tp", "3"}}, {"--tp 3", "wide", "* 3 ="}},
           {3, {{"--tp", "2"}}, {"--tp 2 needs 2 ranks, or a multiple", "3 were started"}},
           {4,
            {{"--tp", "2"}, {"--pp", "2"}, {"--dp", "2"}},
            {"--dp 2 x --pp 2 x --tp 2 needs 8 ranks", "4 were started"}},
           {2, {{"--tp", "2"}, {"--optimizer", "adafactor"}}, {"adafactor", "--tp 2", "adamw"}},
           {1, {{"--sequence-parallel", "true"}}, {"--sequence-parallel", "--tp"}},
           {2,
            {{"--tp", "2"},
             {"--sequence-parallel", "true"},
             {"--seq-len", "9"},
             {"--micro-batch", "1"}},
            {"--sequence-parallel", "1 x 9 = 9 tokens", "--tp 2"}},
           {2, {{"--tp", "2"}, {"--state-layout", "int8"}}, {"int8", "--tp 2", "bf16mv"}}});
}

}  // namespace sluice::test::tensor_ranks_test
