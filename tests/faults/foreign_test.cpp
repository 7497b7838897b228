#include <csignal>
#include <functional>

#include "tests/faults/runs.h"
#include "tests/support/catch.h"

// Files that are whole but do not belong together, and folders that are not what they seem.

namespace sluice::test::foreign_test {
namespace {

const Flags keep_two{{"--keep", "2"}};
const Flags four_steps = keep_two + Flags{{"--steps", "4"}};

/// One error of these words and this exit code, and nothing of the folder is changed.
std::string refused(FaultRuns& runs, const std::string& output, const Flags& changes, int code,
                    const std::vector<std::string>& words) {
  Problems problems;
  const Outcome before = outcome(runs.path() / output);
  const Ended ended = runs.run(output, {.flags = keep_two + changes});
  problems.require(ended.exit_code == code,
                   "exit code " + std::to_string(ended.exit_code) + ": " + ended.err);
  problems.require(count_lines(ended.words) == 1, "not one line: " + ended.err);
  for (const auto& word : words)
    problems.require(ended.words.find(word) != std::string::npos,
                     "without \"" + word + "\": " + ended.err);
  problems.add(difference(outcome(runs.path() / output), before));
  return problems.text();
}

void replace(const fs::path& file, const fs::path& by) {
  fs::remove(file);
  fs::copy_file(by, file);
}

}  // namespace

TEST_CASE("files of different checkpoints do not mix") {
  FaultRuns runs(kinds().front());
  Tally tally("e: files of different checkpoints");
  REQUIRE(runs.run("base", {.flags = four_steps}).exit_code == 0);
  // Other runs of the same shape, so that only the contents tell.
  REQUIRE(runs.run("seed", {.flags = four_steps + Flags{{"--seed", "7"}}}).exit_code == 0);
  const fs::path older = "checkpoints/step-00000002", newer = "checkpoints/step-00000004";
  const auto base = runs.path() / "base";
  struct Row {
    const char* what;
    const char* file;
    fs::path from;
  };
  std::vector<Row> rows{
      {"weights of the step before", "weights.safetensors", base / older},
      {"moments of the step before", "optimizer.safetensors", base / older},
      {"state of the step before", "state.json", base / older},
      {"weights of another run", "weights.safetensors", runs.path() / "seed" / newer},
      {"moments of another run", "optimizer.safetensors", runs.path() / "seed" / newer},
      {"weights in the place of moments", "optimizer.safetensors", base / newer}};
  // Ranks have no files of their own; those that two ranks have made differ in their last bits.
  std::optional<FaultRuns> ranks;
  if (have_mpirun()) {
    ranks.emplace(Kind{"2 ranks", 2, {{"--micro-batch", "1"}}, true});
    REQUIRE(ranks->run("base", {.flags = four_steps}).exit_code == 0);
    rows.push_back(
        {"weights that two ranks made", "weights.safetensors", ranks->path() / "base" / newer});
  }
  for (const auto& [what, file, from] : rows) {
    fs::copy(base, runs.path() / "mixed", fs::copy_options::recursive);
    const fs::path mixed = runs.path() / "mixed" / newer;
    const bool same = std::string(what) == "weights in the place of moments";
    replace(mixed / file, from / (same ? "weights.safetensors" : file));
    Problems problems;
    // A state of another step says so of itself, or of the files beside it.
    const std::string named = std::string(file) == "state.json" ? "safetensors is damaged" : file;
    problems.add(
        refused(runs, "mixed", {{"--resume", mixed.string()}}, 1, {newer.string(), named}));
    problems.add(runs.goes_on("mixed", keep_two, true));
    tally.round(what, problems.text());
    runs.forget("mixed");
  }
}

TEST_CASE("a checkpoint of another run is refused by what differs from it") {
  FaultRuns runs(kinds().front());
  Tally tally("e: checkpoints of other runs");
  REQUIRE(runs.run("base", {.flags = four_steps}).exit_code == 0);
  std::string text = read_file(runs.path() / "text.txt");
  text[100] ^= 1;
  write_file(runs.path() / "other.txt", text);
  const std::vector<std::pair<std::string, Flags>> rows{
      {"model", {{"--n-embd", "64"}}},
      {"model", {{"--n-layer", "3"}}},
      {"data", {{"--data", runs.at("other.txt")}}},
      {"batch_size", {{"--batch-size", "8"}}},
      {"seed", {{"--seed", "7"}}}};
  const std::string exact = (runs.path() / "base/checkpoints/step-00000004").string();
  for (const auto& [word, changes] : rows)
    for (const Flags& resume : {Flags{}, Flags{{"--resume", exact}}})
      tally.round(word, refused(runs, "base", changes + resume, 2, {"its " + word + " is"}));
  tally.round("as it was", runs.goes_on("base", keep_two));
}

TEST_CASE("what lies about in the folder of checkpoints is neither used nor in the way") {
  FaultRuns runs(kinds().front());
  Tally tally("e: left-over temporaries and links");
  REQUIRE(runs.run("base", {.flags = four_steps}).exit_code == 0);
  const auto round = [&](const std::string& what, const std::function<void(const fs::path&)>& make,
                         bool older_is_right, const std::function<std::string()>& then = {}) {
    fs::copy(runs.path() / "base", runs.path() / "out", fs::copy_options::recursive);
    make(runs.path() / "out/checkpoints");
    Problems problems;
    problems.add(runs.goes_on("out", keep_two, older_is_right));
    if (then) problems.add(then());
    tally.round(what, problems.text());
    runs.forget("out");
  };
  const auto newer = "step-00000004";
  round(
      "a whole temporary of a later step",
      [&](const fs::path& p) { fs::copy(p / newer, p / "step-00000009.tmp.4711"); }, false);
  round(
      "a temporary of the step to be saved",
      [&](const fs::path& p) { fs::create_directory(p / "step-00000005.tmp.1"); }, false);
  round(
      "a file in the place of a temporary",
      [&](const fs::path& p) { write_file(p / "step-00000005.tmp.2", "x"); }, false);
  round(
      "a temporary in a checkpoint",
      [&](const fs::path& p) { write_file(p / "step-00000002" / "state.json.tmp.3", "{"); }, false);
  round(
      "a file with the name of a checkpoint",
      [&](const fs::path& p) { write_file(p / "step-00000007", "x"); }, false,
      [&] {
        fs::remove(runs.path() / "out/checkpoints/step-00000007");
        return std::string();
      });
  round(
      "an empty folder with the name of a later checkpoint",
      [&](const fs::path& p) { fs::create_directory(p / "step-00000005"); }, true);

  // A link to what is the same file is that file; one to nothing or to another file is damage.
  const auto link = [](const fs::path& file, const fs::path& to) {
    fs::remove(file);
    fs::create_symlink(to, file);
  };
  const fs::path elsewhere = runs.path() / "elsewhere.safetensors";
  fs::copy_file(runs.path() / "base/checkpoints/step-00000004/weights.safetensors", elsewhere);
  const std::string bytes = read_file(elsewhere);
  const auto untouched = [&] {
    return std::string(read_file(elsewhere) == bytes ? "" : "the link's target was changed");
  };
  round(
      "a link to the same bytes",
      [&](const fs::path& p) { link(p / newer / "weights.safetensors", elsewhere); }, false,
      untouched);
  round(
      "a link to other bytes",
      [&](const fs::path& p) {
        link(p / newer / "weights.safetensors", p / "step-00000002/weights.safetensors");
      },
      true);
  round(
      "a link to nothing",
      [&](const fs::path& p) { link(p / newer / "optimizer.safetensors", "/nowhere"); }, true);
  round(
      "a link to a folder",
      [&](const fs::path& p) { link(p / newer / "state.json", p / "step-00000002"); }, true);
  // The oldest is removed by the next save: the link goes, what it leads to stays.
  round(
      "a link in the place of an old checkpoint",
      [&](const fs::path& p) {
        fs::rename(p / "step-00000002", runs.path() / "kept");
        fs::create_directory_symlink(runs.path() / "kept", p / "step-00000002");
      },
      false,
      [&] {
        return std::string(fs::exists(runs.path() / "kept/weights.safetensors")
                               ? ""
                               : "files were removed through a link");
      });
}

TEST_CASE("a folder that goes away while a run writes to it") {
  FaultRuns runs(kinds().front());
  Tally tally("e: folders removed during training");
  const Flags many = keep_two + Flags{{"--steps", "60"}};
  const int rounds = by_form(2, 20);
  for (int round = 0; round < rounds; ++round) {
    const fs::path output = runs.path() / "out";
    const fs::path gone = round % 2 == 0 ? output / "checkpoints" : output;
    Job job(runs, "out", {.flags = many});
    REQUIRE(eventually([&] { return newest_step(output) >= 4 + round; }));
    std::error_code ignored;
    fs::remove_all(gone, ignored);
    const Ended ended = job.finish();
    Problems problems;
    problems.require(
        ended.exit_code == 0 || (ended.exit_code == 1 && count_lines(ended.words) == 1),
        "exit code " + std::to_string(ended.exit_code) + ": " + ended.err);
    // Steps of the log may be gone with the folder: it is the files that count.
    const Ended next = runs.run("out", {.flags = many});
    problems.require(next.exit_code == 0, "it cannot go on: " + next.err);
    problems.require(outcome(output).files == runs.undisturbed(many).files, "other bytes");
    tally.round(gone.filename().string(), problems.text());
    runs.forget("out");
  }
}

}  // namespace sluice::test::foreign_test
