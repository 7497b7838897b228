#include <sstream>

#include <nlohmann/json.hpp>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/training/ranks.h"

// However many ranks share a batch, and however they exchange what they computed: the training is
// that of one process.

namespace sluice::test::ranks_test {
namespace {

using Losses = std::map<std::int64_t, double>;

/// Compares the losses of all steps, which may differ only by the order of sums.
void require_near(const Losses& losses, const Losses& expected) {
  REQUIRE(losses.size() == expected.size());
  for (const auto& [step, loss] : expected) {
    INFO("step " << step);
    REQUIRE(losses.contains(step));
    CHECK(losses.at(step) == Approx(loss).epsilon(1e-6));
  }
}

Json logged(const fs::path& output, const std::string& event) {
  std::istringstream log(read_file(output / "log.jsonl"));
  Json found;
  for (std::string line; std::getline(log, line);)
    if (Json json = Json::parse(line); json.at("event") == event) found = std::move(json);
  REQUIRE_FALSE(found.is_null());
  return found;
}

Losses since(const Losses& losses, std::int64_t step) {
  return {losses.lower_bound(step), losses.end()};
}

}  // namespace

TEST_CASE("more ranks than send each other messages directly train as one process") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const Flags of_nine{{"--batch-size", "9"}, {"--steps", "4"}, {"--save-every", "2"}};
  runs.run_well({{1, "one", of_nine},
                 {9, "nine", of_nine + Flags{{"--micro-batch", "1"}}},
                 {9, "nine zero", of_nine + Flags{{"--micro-batch", "1"}, {"--zero", "1"}}}});
  const auto one = logged_losses(runs.path() / "one");
  REQUIRE(one.size() == 4);
  require_near(logged_losses(runs.path() / "nine"), one);
  CHECK(trained_files(runs.path() / "nine zero") == trained_files(runs.path() / "nine"));
}

TEST_CASE("1, 2 and 4 ranks follow the reference's losses, with divided state too") {
  if (!have_mpirun()) return;
  const std::string folder = GENERATE(from_range(fixture_folders()));
  if (!long_form() && folder != fixture_folders().front()) return;
  const Fixture fixture(folder, "tiny");
  const Flags base = reference_flags(fixture);
  const RankRuns runs;
  const auto name_of = [](int ranks, const char* zero) {
    return std::to_string(ranks) + " zero " + zero;
  };
  std::vector<RankJob> jobs;
  // A rank with one micro-batch adds sharded gradients in the same order as others.
  for (const int ranks : {1, 2, 4})
    for (const char* zero : {"0", "1", "2"})
      jobs.push_back({ranks, name_of(ranks, zero), base + Flags{{"--zero", zero}}});
  runs.run_well(jobs);
  Losses single;
  for (const int ranks : {1, 2, 4}) {
    TrainedFiles whole;
    for (const char* zero : {"0", "1", "2"}) {
      INFO(ranks << " ranks, --zero " << zero);
      const std::string name = name_of(ranks, zero);
      const fs::path output = runs.path() / name;
      CHECK(logged(output, "start").at("ranks") == ranks);
      const Losses losses = logged_losses(output);
      if (single.empty()) {
        single = losses;
        const Json& trajectory = fixture.json().at("trajectory");
        REQUIRE(losses.size() == trajectory.size());
        for (std::size_t k = 0; k < trajectory.size(); ++k)
          CHECK(losses.at(static_cast<std::int64_t>(k) + 1) ==
                Approx(trajectory.at(k).at("loss").get<double>()).margin(1e-5));
      }
      require_near(losses, single);
      const TrainedFiles files = trained_files(output);
      if (*zero == '0') whole = files;
      const bool same = files == whole;
      CHECK(same);
      CHECK_FALSE(files.model.empty());
    }
  }
}

TEST_CASE("8 ranks follow one process from the reference's model") {
  if (!have_mpirun()) return;
  const Fixture fixture(fixture_folders().front(), "tiny");
  Flags flags = reference_flags(fixture);
  flags["--data-order"] = "shuffled";
  flags["--batch-size"] = "8";
  flags["--steps"] = "30";
  const RankRuns runs;
  runs.run_well(1, "1", flags);
  const Losses single = logged_losses(runs.path() / "1");
  REQUIRE(single.size() == 30);
  for (const char* zero : {"0", "1", "2"}) {
    INFO("--zero " << zero);
    flags["--zero"] = zero;
    const std::string name = std::string("8 zero ") + zero;
    runs.run_well(8, name, flags);
    require_near(logged_losses(runs.path() / name), single);
  }
}

TEST_CASE("how gradients and weights travel does not change a bit") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  // 2.5 MB of gradients, in three buckets of at most 1 MiB.
  const Flags wide{{"--n-embd", "160"}, {"--steps", by_form("3", "5")}};
  const std::vector<Flags> variants{{},
                                    {{"--zero", "1"}},
                                    {{"--bucket-size", "1MiB"}},
                                    {{"--overlap", "false"}},
                                    {{"--bucket-size", "1MiB"}, {"--overlap", "false"}},
                                    {{"--bucket-size", "1MiB"}, {"--zero", "1"}},
                                    {{"--checked", "false"}}};
  const auto name_of = [](int ranks, std::size_t i) {
    return std::to_string(ranks) + " variant " + std::to_string(i);
  };
  // Both numbers of ranks have every flag once, two of them together with 4 ranks.
  const auto has = [&](int ranks, std::size_t i) {
    return ranks == 4 ? i != 1 && i != 3 && i != 6 : long_form() || (i != 4 && i != 5);
  };
  std::vector<RankJob> jobs;
  for (const int ranks : {2, 4})
    for (std::size_t i = 0; i < variants.size(); ++i)
      if (has(ranks, i))
        jobs.push_back(
            {ranks, name_of(ranks, i),
             wide + variants[i] + Flags{{"--rank-files", runs.at(name_of(ranks, i) + ".ranks")}}});
  runs.run_well(jobs);
  for (const int ranks : {2, 4}) {
    TrainedFiles expected;
    for (std::size_t i = 0; i < variants.size(); ++i) {
      if (!has(ranks, i)) continue;
      const std::string name = name_of(ranks, i);
      INFO(name);
      const TrainedFiles files = trained_files(runs.path() / name);
      if (i == 0) expected = files;
      const bool same = files == expected;
      CHECK(same);
      const auto record = read_record(record_path(runs.at(name + ".ranks"), 0));
      REQUIRE(record);
      const bool third = std::ranges::any_of(record->operations, [](const auto& operation) {
        return operation.signature.label_text() == "gradients 2";
      });
      CHECK(third == variants[i].contains("--bucket-size"));
    }
  }
}

TEST_CASE("a run goes on with another number of ranks, and with state divided or not") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  runs.run_well({{2, "whole", {{"--steps", "20"}}},
                 {1, "single", {{"--steps", "20"}}},
                 {2, "parts 0", {{"--steps", "10"}, {"--zero", "0"}}},
                 {2, "parts 1", {{"--steps", "10"}, {"--zero", "1"}}},
                 {2, "parts 2", {{"--steps", "10"}, {"--zero", "2"}}}});
  const Losses whole = logged_losses(runs.path() / "whole");
  require_near(logged_losses(runs.path() / "single"), whole);
  const auto name_of = [](int ranks, const std::string& zero) {
    return std::to_string(ranks) + " ranks after zero " + zero;
  };
  std::vector<RankJob> jobs;
  for (const std::string zero : {"0", "1", "2"}) {
    const auto saved = list_checkpoints(runs.path() / ("parts " + zero) / "checkpoints");
    REQUIRE(saved.size() == 1);
    for (const int ranks : {1, 2, 4})
      jobs.push_back(
          {ranks, name_of(ranks, zero), {{"--steps", "20"}, {"--resume", saved[0].string()}}});
  }
  runs.run_well(jobs);
  for (const std::string zero : {"0", "1", "2"}) {
    for (const int ranks : {1, 2, 4}) {
      const std::string name = name_of(ranks, zero);
      INFO(name);
      require_near(logged_losses(runs.path() / name), since(whole, 11));
      if (ranks != 2) continue;
      const bool same = trained_files(runs.path() / name) == trained_files(runs.path() / "whole");
      CHECK(same);
    }
  }
  // And the state that was whole is divided.
  runs.run_well(2, "parts 0", {{"--steps", "20"}, {"--zero", "1"}});
  const bool same = trained_files(runs.path() / "parts 0") == trained_files(runs.path() / "whole");
  CHECK(same);
}

TEST_CASE("divided 16-bit and 8-bit state is that of a rank that has all of it") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const std::vector<std::string> layouts{"split", "bf16m", "int8"};
  std::vector<RankJob> jobs;
  for (const std::string& layout : layouts)
    for (const std::string zero : {"0", "1"})
      jobs.push_back({2,
                      layout + " zero " + zero,
                      {{"--steps", "6"},
                       {"--precision", "bf16"},
                       {"--state-layout", layout},
                       {"--zero", zero}}});
  runs.run_well(jobs);
  for (const std::string& layout : layouts) {
    INFO(layout);
    const bool same = trained_files(runs.path() / (layout + " zero 1")) ==
                      trained_files(runs.path() / (layout + " zero 0"));
    CHECK(same);
  }
}

TEST_CASE("dropout and validation are those of one process") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  Losses single;
  double validation = 0;
  for (const int ranks : {1, 2, 4}) {
    INFO(ranks << " ranks");
    const std::string name = std::to_string(ranks);
    runs.run_well(ranks, name,
                  {{"--steps", "30"},
                   {"--dropout", "0.2"},
                   {"--micro-batch", "1"},
                   {"--val-data", runs.at("t.bin")},
                   {"--val-steps", "1000"}});
    const Losses losses = logged_losses(runs.path() / name);
    const double val = logged(runs.path() / name, "val").at("loss");
    if (ranks == 1) {
      single = losses;
      validation = val;
    }
    require_near(losses, single);
    CHECK(val == Approx(validation).epsilon(1e-6));
  }
  runs.run_well(1, "none", {{"--steps", "1"}});
  CHECK(logged_losses(runs.path() / "none").at(1) != Approx(single.at(1)).epsilon(1e-4));
}

}  // namespace sluice::test::ranks_test
