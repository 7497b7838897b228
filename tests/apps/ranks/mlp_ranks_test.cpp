#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/training/ranks.h"

// train_mlp as a user runs it: alone, or by mpirun as ranks that divide the matrices.

namespace sluice::test::mlp_ranks_test {
namespace {

ProgramResult train_mlp(int ranks, const Flags& flags) {
  const std::string program = (fs::path(SLUICE_BIN_DIR) / "train_mlp").string();
  // Jobs that begin at the same time would make the same folder for mpirun.
  const TempDir temporary;
  Arguments all{"TMPDIR=" + temporary.path().string()};
  if (ranks > 1) {
    const Arguments given = mpirun_flags();
    all.emplace_back(SLUICE_MPIRUN);
    all.insert(all.end(), given.begin(), given.end());
    all.insert(all.end(), {"-n", std::to_string(ranks)});
  }
  all.insert(all.end(), {program, "--threads=1"});
  for (const auto& [flag, value] : flags)
    all.push_back(flag + "=" + value);
  return RunningProgram("/usr/bin/env", all).finish(60);
}

/// Returns the printed text up to the place of the log.
std::string printed_steps(const std::string& out) {
  return out.substr(std::min(out.find("step"), out.size()));
}

}  // namespace

TEST_CASE("an MLP's losses are those of one process, however many ranks divide it") {
  if (!have_mpirun()) return;
  const TempDir runs;
  for (const auto& [precision, tolerance] : {std::pair("fp64", 1e-12), std::pair("fp32", 1e-5)}) {
    const auto train = [&, name = precision](int ranks) {
      const fs::path output = runs.path() / (name + std::to_string(ranks));
      const ProgramResult result = train_mlp(ranks, {{"--output", output.string()},
                                                     {"--precision", name},
                                                     {"--steps", "120"},
                                                     {"--tp", std::to_string(ranks)}});
      INFO(result.err);
      REQUIRE(result.exit_code == 0);
      CHECK(result.err.empty());
      CHECK(count_lines(printed_steps(result.out)) == 3);  // one rank speaks
      CHECK_THAT(result.out, Contains("step   120/120"));
      return logged_losses(output);
    };
    const auto alone = train(1);
    REQUIRE(alone.size() == 120);
    CHECK(alone.at(120) < 0.3 * alone.at(1));
    for (const int ranks : {2, 4}) {
      const auto losses = train(ranks);
      REQUIRE(losses.size() == alone.size());
      for (const auto& [step, loss] : alone) {
        INFO(precision << ", " << ranks << " ranks, step " << step);
        CHECK(std::abs(losses.at(step) - loss) < tolerance);
      }
    }
  }
}

TEST_CASE("replicas of an MLP add up their gradients in two ways with the same bits") {
  if (!have_mpirun()) return;
  const TempDir runs;
  int run = 0;
  const auto train = [&](int ranks, const std::string& reduce, Flags flags) {
    const fs::path output = runs.path() / std::to_string(run++);
    flags["--output"] = output.string();
    flags["--steps"] = "60";
    if (ranks > 1) {
      flags["--dp"] = std::to_string(ranks);
      flags["--dp-reduce"] = reduce;
    }
    const ProgramResult result = train_mlp(ranks, flags);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return logged_losses(output);
  };
  // Batches of all points: replicas have parts of them in another order.
  const Flags whole{{"--points", "96"}, {"--batch-size", "96"}, {"--precision", "fp64"}};
  const auto alone = train(1, "", whole);
  CHECK(alone.at(60) < 0.8 * alone.at(1));
  for (const int ranks : {2, 3, 4}) {
    const auto losses = train(ranks, "all-reduce", whole);
    CHECK(losses == train(ranks, "gather", whole));
    REQUIRE(losses.size() == alone.size());
    for (const auto& [step, loss] : alone) {
      INFO(ranks << " ranks, step " << step);
      CHECK(std::abs(losses.at(step) - loss) < 1e-12);
    }
  }
  const Flags parts{{"--batch-size", "32"}};
  CHECK(train(2, "all-reduce", parts) == train(2, "gather", parts));
}

TEST_CASE("replicas that cannot be are refused in one line") {
  for (const auto& [flags, said] :
       {std::pair(Flags{{"--dp", "2"}}, "--dp 2 needs 2 ranks, and 1 was started"),
        std::pair(Flags{{"--dp", "2"}, {"--tp", "2"}}, "--dp 2 and --tp 2"),
        std::pair(Flags{{"--dp-reduce", "gather"}}, "--dp-reduce gather is for replicas"),
        std::pair(Flags{{"--dp-reduce", "sum"}}, "--dp-reduce")}) {
    const ProgramResult result = train_mlp(1, flags);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains(said));
    CHECK(count_lines(result.err) == 1);
  }
  if (!have_mpirun()) return;
  CHECK_THAT(train_mlp(2, {{"--dp", "2"}, {"--batch-size", "3"}}).err,
             Contains("--batch-size 3 is no multiple of --dp 2"));
  CHECK_THAT(train_mlp(2, {{"--dp", "2"}, {"--points", "1"}}).err,
             Contains("--points 1: 2 replicas need a point each"));
}

TEST_CASE("the log of an MLP's training has what its curves are drawn from") {
  const TempDir runs;
  const std::string output = (runs.path() / "run").string();
  const Flags flags{{"--output", output}, {"--steps", "60"}, {"--batch-size", "16"}};
  REQUIRE(train_mlp(1, flags).exit_code == 0);
  std::istringstream log(read_file(fs::path(output) / "log.jsonl"));
  std::map<std::string, int> events;
  std::vector<std::int64_t> judged;
  for (std::string line; std::getline(log, line);) {
    const auto event = nlohmann::json::parse(line);
    ++events[event.at("event")];
    if (event.contains("accuracy")) judged.push_back(event.at("step"));
  }
  CHECK(events == std::map<std::string, int>{{"start", 1}, {"train", 60}, {"end", 1}});
  CHECK(judged == std::vector<std::int64_t>{50, 60});
  // Another run does not write into it.
  const ProgramResult again = train_mlp(1, flags);
  CHECK(again.exit_code == 2);
  CHECK_THAT(again.err, Contains("there is a log already"));
}

TEST_CASE("an MLP that ranks cannot divide is refused once, with the arithmetic") {
  if (!have_mpirun()) return;
  const TempDir runs;
  const struct {
    int ranks;
    Flags flags;
    std::vector<std::string> words;
    int exit_code = 2;
  } rows[] = {
      {1, {{"--tp", "2"}}, {"--tp 2 needs 2 ranks", "alone", "mpirun -n 2"}},
      {2, {{"--tp", "4"}}, {"--tp 4 needs 4 ranks, but 2 were started", "start 4 (-n 4)"}},
      {2, {{"--hidden", "33"}}, {"the hidden width is 33", "16 * 2 = 32"}},
      {4, {{"--classes", "3"}}, {"4 ranks: there are 3 classes"}},
      {2, {{"--lr", "1000"}, {"--steps", "50"}}, {"is not finite"}, 3},
  };
  // At the same time, since mpirun takes a second to end a job that failed.
  std::vector<std::future<ProgramResult>> results;
  const auto output = [&](std::size_t i) { return runs.path() / ("out" + std::to_string(i)); };
  for (const auto& row : rows) {
    const Flags flags = row.flags + Flags{{"--output", output(results.size()).string()}};
    results.push_back(std::async(std::launch::async, train_mlp, row.ranks, flags));
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& row = rows[i];
    const ProgramResult result = results[i].get();
    INFO(result.err);
    CHECK(result.exit_code == row.exit_code);
    for (const std::string& word : row.words)
      CHECK_THAT(result.err, Contains(word));
    const auto first = result.err.find("train_mlp: error:");
    REQUIRE(first != std::string::npos);
    CHECK(result.err.find("train_mlp: error:", first + 1) == std::string::npos);
    CHECK(fs::exists(output(i)) == (row.exit_code == 3));
  }
}

}  // namespace sluice::test::mlp_ranks_test
