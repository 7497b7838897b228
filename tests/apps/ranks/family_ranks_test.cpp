#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/training/ranks.h"

// Families that are no GPT-2 in every layout of ranks: the reference's training.

namespace sluice::test::family_ranks_test {
namespace {

using Losses = std::map<std::int64_t, double>;

void require_trajectory(const Losses& losses, const Json& trajectory, std::int64_t from = 0) {
  REQUIRE(losses.size() == trajectory.size() - static_cast<std::size_t>(from));
  for (const auto& [step, loss] : losses) {
    INFO("step " << step);
    CHECK(loss == Approx(trajectory.at(static_cast<std::size_t>(step) - 1).at("loss").get<double>())
                      .margin(1e-5));
  }
}

}  // namespace

TEST_CASE("every family follows its reference's trajectory in every layout", "[family]") {
  if (!have_mpirun()) return;
  struct Row {
    const char* name;
    int ranks;
    Flags flags;
  };
  const std::vector<Row> rows{
      {"llama", 1, {{"--micro-batch", "1"}, {"--placement", "auto:block"}}},
      {"llama", 2, {{"--tp", "2"}}},
      {"llama", 2, {{"--tp", "2"}, {"--sequence-parallel", "true"}}},
      {"llama", 2, {{"--pp", "2"}, {"--micro-batch", "1"}, {"--pipeline", "zb-h1"}}},
      {"llama", 2, {{"--dp", "2"}, {"--zero", "2"}}},
      {"llama", 8, {{"--tp", "2"}, {"--pp", "2"}, {"--dp", "2"}, {"--zero", "1"}}},
      {"qwen2", 1, {{"--placement", "auto:gelu+ln"}}},
      {"qwen2", 2, {{"--pp", "2"}, {"--micro-batch", "1"}}},
      {"qwen2", 2, {{"--tp", "2"}}},
      {"qwen2", 2, {{"--tp", "2"}, {"--sequence-parallel", "true"}}},
      {"qwen2", 8, {{"--tp", "2"}, {"--pp", "2"}, {"--dp", "2"}, {"--zero", "2"}}},
      {"qwen2", 2, {{"--dp", "2"}, {"--zero", "1"}}},
      {"qwen3", 1, {{"--placement", "auto:gelu+ln"}, {"--micro-batch", "1"}}},
      {"qwen3", 2, {{"--tp", "2"}}},
      {"qwen3", 2, {{"--tp", "2"}, {"--sequence-parallel", "true"}}},
      {"qwen3", 8, {{"--tp", "2"}, {"--pp", "2"}, {"--dp", "2"}, {"--zero", "2"}}},
      {"gptj", 1, {{"--placement", "auto:gelu+ln"}}},
      {"gptj", 2, {{"--tp", "2"}, {"--sequence-parallel", "true"}}},
      {"gptj", 2, {{"--pp", "2"}, {"--micro-batch", "1"}, {"--pipeline", "zb-h1"}}},
      {"gptj", 8, {{"--tp", "2"}, {"--pp", "2"}, {"--dp", "2"}, {"--zero", "1"}}},
      {"gpt_neox", 1, {{"--placement", "auto:block"}}},
      {"gpt_neox", 2, {{"--tp", "2"}}},
      {"gpt_neox", 2, {{"--tp", "2"}, {"--sequence-parallel", "true"}}},
      {"gpt_neox", 4, {{"--pp", "2"}, {"--dp", "2"}, {"--zero", "2"}}}};
  const RankRuns runs;
  const std::string folder = fixture_folders().front();
  std::vector<RankJob> jobs;
  for (const auto& [name, ranks, flags] : rows)
    jobs.push_back({ranks, std::to_string(jobs.size()) + " " + name,
                    reference_flags(Fixture(folder, name)) + flags});
  runs.run_well(jobs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [name, ranks, flags] = rows[i];
    INFO(name << ": " << shown(ranks, flags));
    require_trajectory(logged_losses(runs.path() / jobs[i].output),
                       Fixture(folder, name).json().at("trajectory"));
  }
}

TEST_CASE("a Llama's checkpoint of one layout goes on in another", "[family]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const Fixture fixture(fixture_folders().front(), "llama");
  const Flags base = reference_flags(fixture);
  const Flags half = base + Flags{{"--save-every", "10"}, {"--keep", "3"}};
  struct Row {
    int ranks;
    Flags flags;
  };
  const Flags mesh{{"--tp", "2"}, {"--pp", "2"}, {"--zero", "1"}};
  const std::vector<std::pair<Row, Row>> rows{
      {{4, mesh}, {1, {}}},
      {{1, {}}, {4, mesh}},
      {{2, {{"--dp", "2"}, {"--zero", "1"}}}, {2, {{"--tp", "2"}}}}};
  std::vector<RankJob> before, after;
  for (const auto& [first, second] : rows) {
    const std::string from = "from " + std::to_string(before.size());
    before.push_back({first.ranks, from, half + first.flags});
    after.push_back(
        {second.ranks, "after " + std::to_string(after.size()),
         base + second.flags + Flags{{"--resume", runs.at(from + "/checkpoints/step-00000010")}}});
  }
  runs.run_well(before);
  runs.run_well(after);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [first, second] = rows[i];
    INFO(shown(first.ranks, first.flags) << ", then " << shown(second.ranks, second.flags));
    require_trajectory(logged_losses(runs.path() / after[i].output),
                       fixture.json().at("trajectory"), 10);
    // Its model opens, from the run and from the checkpoint, with the parameters' own names.
    const fs::path output = runs.path() / after[i].output;
    const TestModel exported = open_model(output / "model", make_cpu_device());
    CHECK(exported.model->config().family == Family::llama);
    CHECK(exported.model->config().kv_heads() == 2);
  }
}

TEST_CASE("Muon follows its reference among ranks, and four ranks' checkpoint goes on in one",
          "[family][muon]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  for (const std::string name : {"llama", "tiny"}) {
    const Fixture fixture(fixture_folders().front(), name);
    const Json& muon = fixture.json().at("muon").at(0);
    const Flags base = reference_flags(fixture) +
                       Flags{{"--optimizer", "muon"}, {"--muon-lr", muon.at("lr").dump()}};
    const Flags four{{"--dp", "2"}, {"--pp", "2"}, {"--zero", "1"}};
    const Flags divided{{"--tp", "2"}, {"--pp", "2"}};
    const Flags saved{{"--save-every", "10"}, {"--keep", "3"}};
    const std::vector<std::pair<int, Flags>> rows{
        {1, {{"--micro-batch", "1"}}},
        {2, {{"--dp", "2"}}},
        {2, {{"--dp", "2"}, {"--zero", "1"}}},
        {2, {{"--dp", "2"}, {"--zero", "2"}}},
        {2, {{"--pp", "2"}, {"--micro-batch", "1"}}},
        {2, {{"--tp", "2"}}},
        {4, {{"--tp", "2"}, {"--dp", "2"}, {"--zero", "2"}}},
        {4, divided + saved},
        {4, four + saved}};
    std::vector<RankJob> jobs;
    for (const auto& [ranks, flags] : rows)
      jobs.push_back({ranks, name + std::to_string(jobs.size()), base + flags});
    runs.run_well(jobs);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      INFO(name << ": " << shown(rows[i].first, rows[i].second));
      require_trajectory(logged_losses(runs.path() / jobs[i].output), muon.at("trajectory"));
    }
    const auto resumed = [&](std::size_t job) {
      return base + Flags{{"--resume", runs.at(jobs[job].output + "/checkpoints/step-00000010")}};
    };
    const std::size_t last = jobs.size() - 1;
    const std::vector<RankJob> after{
        {1, name + " after", resumed(last)},
        {1, name + " from divided", resumed(last - 1)},
        {2, name + " to divided", resumed(last) + Flags{{"--tp", "2"}}}};
    runs.run_well(after);
    for (const RankJob& job : after) {
      INFO(job.output);
      require_trajectory(logged_losses(runs.path() / job.output), muon.at("trajectory"), 10);
    }
  }
}

}  // namespace sluice::test::family_ranks_test
