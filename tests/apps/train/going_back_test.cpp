#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// A run that goes back to an older checkpoint, on, and back again: what it goes on from, and what
// stays of what it gives up.

namespace sluice::test::going_back_test {
namespace {

struct Runs : TempDir {
  Runs() { write_tokens(path() / "t.bin", 600, 64); }

  fs::path folder(const std::string& run) const { return path() / run / "checkpoints"; }
  std::string step(const std::string& run, int number) const {
    return checkpoint_path(folder(run), number).string();
  }
  Arguments flags(const std::string& output, const std::string& more) const {
    Arguments all = words(
        "--n-layer 1 --n-head 2 --n-embd 16 --vocab-size 64 --context 16 --batch-size 4 "
        "--threads 1 --lr-schedule constant --val-every 0 --device cpu " +
        more);
    for (const std::string& word : {std::string("--data"), (path() / "t.bin").string(),
                                    std::string("--output"), (path() / output).string()})
      all.push_back(word);
    return all;
  }
  std::string run(const std::string& output, const std::string& more) const {
    return run_well("train_gpt2", flags(output, more));
  }
  /// 20 steps with checkpoints after each fifth.
  void twenty(const std::string& output) const {
    run(output, "--steps 20 --save-every 5 --keep 10");
  }
  void copy(const std::string& from, const std::string& to) const {
    fs::copy(path() / from, path() / to, fs::copy_options::recursive);
  }
  Json start(const std::string& output) const {
    Json found;
    std::istringstream log(read_file(path() / output / "log.jsonl"));
    for (std::string line; std::getline(log, line);)
      if (const Json event = Json::parse(line); event.at("event") == "start") found = event;
    return found;
  }
  std::string weights(const std::string& output) const {
    return read_file(CheckpointHistory(folder(output)).newest() / "weights.safetensors");
  }
  std::set<std::string> names(const fs::path& of) const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(of))
      found.insert(entry.path().filename().string());
    return found;
  }
};

using Names = std::set<std::string>;

}  // namespace

TEST_CASE("a run that went back goes on from there, also if it was killed before it saved",
          "[files]") {
  const Runs runs;
  runs.twenty("base");
  const std::string twentieth = read_file(runs.step("base", 20) + "/weights.safetensors");
  for (const std::string name : {"whole", "killed"}) {
    runs.copy("base", name);
    const std::string back = "--resume " + runs.step(name, 10) + " --skip-batches 3 ";
    if (name == "whole")
      runs.run(name, back + "--steps 14");
    else
      CHECK_THAT(runs.run(name, back + "--steps 12 --save never"),
                 Contains("set aside    ") && Contains("step-00000020 is not what this run goes"));
  }
  CHECK(runs.names(runs.folder("killed")) ==
        Names{"set-aside", "resume.json", "step-00000005", "step-00000010"});
  CHECK(runs.names(runs.folder("killed") / "set-aside") == Names{"step-00000015", "step-00000020"});
  // A refused start in between changes nothing.
  CHECK(run_program("train_gpt2", runs.flags("killed", "--steps 14 --seed 7")).exit_code == 2);

  runs.run("killed", "--steps 14");
  CHECK(runs.start("killed").at("step") == 10);
  CHECK(runs.start("killed").at("skipped_batches") == 3);
  CHECK(runs.weights("killed") == runs.weights("whole"));
  // The checkpoint saved last counts from now on.
  for (const std::string name : {"whole", "killed"})
    runs.run(name, "--steps 16");
  CHECK(runs.start("killed").at("step") == 14);
  CHECK(runs.start("killed").at("skipped_batches") == 3);
  CHECK(runs.weights("killed") == runs.weights("whole"));
  CHECK(read_file(runs.folder("killed") / "set-aside/step-00000020/weights.safetensors") ==
        twentieth);

  // An abandoned checkpoint can be resumed, and the ones abandoned for it are kept, too.
  const auto aside = runs.folder("killed") / "set-aside/step-00000020";
  runs.run("killed", "--steps 21 --resume " + aside.string());
  CHECK(runs.start("killed").at("step") == 20);
  CHECK(runs.start("killed").at("skipped_batches") == 0);
  CHECK(fs::exists(runs.folder("killed") / "set-aside/step-00000016"));
  runs.run("base", "--steps 21");
  CHECK(runs.weights("killed") == runs.weights("base"));
}

TEST_CASE("a --skip-batches given again before anything was saved is not added up", "[files]") {
  const Runs runs;
  runs.twenty("out");
  const std::string back = "--steps 12 --save never --resume " + runs.step("out", 10);
  runs.run("out", back + " --skip-batches 3");
  runs.run("out", "--steps 12 --save never --skip-batches 4");
  CHECK(runs.start("out").at("step") == 10);
  CHECK(runs.start("out").at("skipped_batches") == 4);
  runs.run("out", "--steps 12");
  CHECK(runs.start("out").at("skipped_batches") == 4);
  runs.run("out", "--steps 13 --skip-batches 1");
  CHECK(runs.start("out").at("skipped_batches") == 5);
  // The run resumed without the skip leaves nothing out.
  runs.run("out", back);
  CHECK(runs.start("out").at("skipped_batches") == 0);
}

TEST_CASE("the same command goes back to the same checkpoint as often as it is given", "[files]") {
  const Runs runs;
  runs.twenty("out");
  const std::string back = "--save-every 1 --keep 1 --resume " + runs.step("out", 5);
  // A named checkpoint stays, so no warning announces its removal.
  CHECK_THAT(runs.run("out", back + " --steps 8"), !Contains("the next save removes"));
  CHECK(runs.names(runs.folder("out")) ==
        Names{"set-aside", "resume.json", "step-00000005", "step-00000008"});
  runs.run("out", back + " --steps 9");
  CHECK(runs.start("out").at("step") == 5);
  CHECK(runs.names(runs.folder("out")) ==
        Names{"set-aside", "resume.json", "step-00000005", "step-00000009"});
  CHECK(runs.names(runs.folder("out") / "set-aside") ==
        Names{"step-00000008", "step-00000010", "step-00000015", "step-00000020"});
  // Nothing has its place twice.
  runs.run("out", back + " --steps 8");
  runs.run("out", back + " --steps 9");
  CHECK(runs.names(runs.folder("out") / "set-aside") == Names{"step-00000008", "step-00000008-2",
                                                              "step-00000009", "step-00000010",
                                                              "step-00000015", "step-00000020"});
}

TEST_CASE("a run that goes on with another rate says so", "[files]") {
  const Runs runs;
  const auto run = [&](const std::string& more) {
    Arguments flags = runs.flags("out", "--warmup-steps 0 " + more);
    const auto schedule = std::ranges::find(flags, "--lr-schedule");
    *(schedule + 1) = "linear";
    return run_well("train_gpt2", flags);
  };
  const std::string warning = "warning      the learning rate goes from ";
  run("--steps 4 --lr 0.001");
  // It has come to its end, a tenth. Of 40 steps, four are done.
  const std::string more = run("--steps 40 --lr 0.001 --quiet");
  CHECK_THAT(more,
             Contains(warning + "0.0001 to 0.00091 at step 4: --lr, --steps or the schedule"));
  CHECK_THAT(read_file(runs.path() / "out/log.jsonl"), Contains("from 0.0001 to 0.00091"));
  // The same at step 40: its last rate, and what comes next of 44 steps.
  CHECK_THAT(run("--steps 44 --lr 0.001"), !Contains(warning));
  CHECK_THAT(run("--steps 45 --lr 0.00001"), Contains(warning));
}

TEST_CASE("a run keeps as many checkpoints as before, or says what goes", "[files]") {
  const Runs runs;
  runs.run("out", "--steps 9 --save-every 1 --keep 10");
  CHECK(list_checkpoints(runs.folder("out")).size() == 9);
  CHECK_THAT(runs.run("out", "--steps 12 --save-every 1"), !Contains("removes"));
  CHECK(list_checkpoints(runs.folder("out")).size() == 10);
  CHECK(runs.start("out").at("options").at("keep") == 10);
  const std::string fewer = runs.run("out", "--steps 13 --keep 2 --quiet");
  CHECK_THAT(fewer, Contains("warning      --keep 2: the next save removes 9 older checkpoints, "
                             "from " +
                             runs.step("out", 3) + " on; give --keep 11"));
  CHECK(runs.names(runs.folder("out")) == Names{"step-00000012", "step-00000013"});
  CHECK_THAT(read_file(runs.path() / "out/log.jsonl"), Contains("the next save removes 9"));
  CHECK_THAT(runs.run("out", "--steps 14 --keep 1"),
             Contains("--keep 1: the next save removes 2 older checkpoints") &&
                 Contains("give --keep 3 to keep them"));
  // A run that goes on from another one's checkpoint keeps as many as before, or as that one.
  const std::string named = "--steps 15 --resume " + runs.step("out", 14);
  runs.run("other", "--steps 2 --keep 5");
  runs.run("other", named);
  CHECK(runs.start("other").at("options").at("keep") == 5);
  runs.run("new", named);
  CHECK(runs.start("new").at("options").at("keep") == 1);
}

TEST_CASE("a copy whose name tells another step is passed over, and stays", "[files]") {
  const Runs runs;
  runs.twenty("out");
  fs::copy(runs.step("out", 5), runs.step("out", 20261123), fs::copy_options::recursive);
  CHECK_THAT(runs.run("out", "--steps 21"),
             Contains("resumed      " + runs.step("out", 20)) &&
                 Contains("step-20261123 holds step 5, which is not what its name says"));
  CHECK(fs::exists(runs.step("out", 20261123) + "/state.json"));
  CHECK_THAT(run_well("generate",
                      words("--tokens 1 --max-tokens 1 --model " + (runs.path() / "out").string())),
             !Contains("20261123"));
}

TEST_CASE("a whole checkpoint whose writer was killed before its last rename is taken", "[files]") {
  const Runs runs;
  runs.twenty("base");
  int number = 0;
  const auto resumed_from = [&](const std::function<void(const fs::path&)>& crash) {
    const std::string name = "crash" + std::to_string(number++);
    runs.copy("base", name);
    crash(runs.folder(name));
    runs.run(name, "--steps 21 --keep 1");
    for (const std::string& left : runs.names(runs.folder(name)))
      CHECK_THAT(left, !Contains(".tmp."));
    return runs.start(name).at("step").get<int>();
  };
  const auto unnamed = [](const fs::path& folder, const std::string& name) {
    fs::rename(folder / "step-00000020", folder / name);
  };
  CHECK(resumed_from([&](const fs::path& p) { unnamed(p, "step-00000020.tmp.4711"); }) == 20);
  // One that was about to be removed, of another step than its name tells, or not whole, is not.
  CHECK(resumed_from([&](const fs::path& p) { unnamed(p, "step-00000020.tmp.4711.old"); }) == 15);
  CHECK(resumed_from([&](const fs::path& p) { unnamed(p, "step-00000030.tmp.4711"); }) == 15);
  CHECK(resumed_from([&](const fs::path& p) {
          unnamed(p, "step-00000020.tmp.4711");
          fs::resize_file(p / "step-00000020.tmp.4711/weights.safetensors", 5000);
        }) == 15);
  // Nor one that is older than what is there.
  CHECK(resumed_from([&](const fs::path& p) {
          fs::rename(p / "step-00000005", p / "step-00000005.tmp.4711");
        }) == 20);
}

TEST_CASE("a whole checkpoint without its name is never lost, and a refused start leaves it",
          "[files]") {
  const Runs runs;
  runs.twenty("out");
  const std::string bytes = read_file(runs.step("out", 20) + "/weights.safetensors");
  const auto unnamed = runs.folder("out") / "step-00000020.tmp.4711";
  fs::rename(runs.step("out", 20), unnamed);
  write_file(runs.folder("out") / "resume.json.tmp.4711.12.0123abcd", "{");
  write_file(runs.folder("out") / "resume.json.tmp.mine", "{");
  CHECK(run_program("train_gpt2", runs.flags("out", "--steps 21 --seed 7")).exit_code == 2);
  CHECK(fs::exists(unnamed));
  runs.run("out", "--steps 5 --save never --resume " + runs.step("out", 5));
  CHECK(read_file(runs.folder("out") / "set-aside/step-00000020/weights.safetensors") == bytes);
  CHECK(runs.names(runs.folder("out")) ==
        Names{"set-aside", "resume.json", "resume.json.tmp.mine", "step-00000005"});
}

TEST_CASE("what was decided is not lost with the checkpoint that was saved after it", "[files]") {
  const Runs runs;
  runs.twenty("base");
  for (const std::string file : {"weights.safetensors", "state.json"}) {
    CAPTURE(file);
    runs.copy("base", file);
    runs.run(file, "--steps 11 --skip-batches 3 --resume " + runs.step(file, 10));
    fs::resize_file(fs::path(runs.step(file, 11)) / file, 100);
    CHECK_THAT(runs.run(file, "--steps 12"), Contains("falling back to " + runs.step(file, 10)));
    CHECK(runs.start(file).at("step") == 10);
    CHECK(runs.start(file).at("skipped_batches") == 3);
  }
  // The same applies to a checkpoint of another folder.
  runs.run("other", "--steps 11 --skip-batches 3 --resume " + runs.step("base", 10));
  fs::remove(fs::path(runs.step("other", 11)) / "optimizer.safetensors");
  runs.run("other", "--steps 12");
  CHECK(runs.start("other").at("step") == 10);
  CHECK(runs.start("other").at("skipped_batches") == 3);
}

TEST_CASE("batches left out of the newest checkpoint do not pin it", "[files]") {
  const Runs runs;
  runs.twenty("out");
  runs.run("out", "--steps 21 --save never --skip-batches 2");
  runs.run("out", "--steps 21 --save never");
  CHECK(runs.start("out").at("skipped_batches") == 2);
  runs.run("out", "--steps 23 --save-every 1 --keep 2");
  CHECK(runs.start("out").at("skipped_batches") == 2);
  CHECK(runs.names(runs.folder("out")) == Names{"resume.json", "step-00000022", "step-00000023"});
}

TEST_CASE("what --resume has named stays, also where the run goes on from another branch",
          "[files]") {
  const Runs runs;
  runs.run("out", "--steps 5 --save-every 2");
  runs.run("out", "--steps 7 --keep 2 --save-every 1 --resume " + runs.step("out", 4));
  // This start has nothing to do. It names another checkpoint in resume.json.
  runs.run("out", "--steps 7 --resume " + runs.step("out", 7));
  const auto fifth = runs.folder("out") / "set-aside/step-00000005";
  runs.run("out", "--steps 8 --keep 1 --save-every 1 --resume " + fifth.string());
  CHECK(runs.names(runs.folder("out")) ==
        Names{"set-aside", "resume.json", "step-00000004", "step-00000008"});
}

TEST_CASE("what a start has decided holds for the starts after it", "[files]") {
  const Runs runs;
  runs.run("out", "--steps 4 --save-every 1 --keep 2");
  runs.run("out", "--steps 10 --save-every 1 --keep 9");
  // The last save has said 9, and is set aside.
  const std::string fourth = "--steps 7 --resume " + runs.step("out", 4);
  for (const std::string& flags :
       {fourth + " --save never", std::string("--steps 7 --save never")}) {
    runs.run("out", flags);
    CHECK(runs.start("out").at("step") == 4);
    CHECK(runs.start("out").at("options").at("keep") == 9);
  }
  // A checkpoint named before a start that saved nothing is kept for the same command.
  const auto tenth = runs.folder("out") / "set-aside/step-00000010";
  runs.run("out", "--steps 13 --save-every 1 --keep 1 --resume " + tenth.string());
  CHECK(runs.names(runs.folder("out")) ==
        Names{"set-aside", "resume.json", "step-00000004", "step-00000013"});
  runs.run("out", fourth);
  CHECK(runs.start("out").at("step") == 4);
}

TEST_CASE("a checkpoint of another run takes the place of a run's own", "[files]") {
  const Runs runs;
  runs.twenty("first");
  runs.run("second", "--steps 4 --save-every 2");
  runs.run("second", "--steps 11 --save never --resume " + runs.step("first", 10));
  CHECK(runs.names(runs.folder("second")) == Names{"set-aside", "resume.json"});
  // As if it was killed: its own checkpoints are not taken up again.
  runs.run("second", "--steps 11");
  CHECK(runs.start("second").at("step") == 10);
  CHECK(runs.names(runs.folder("second") / "set-aside") == Names{"step-00000002", "step-00000004"});
  CHECK(runs.names(runs.folder("first")) ==
        Names{"step-00000005", "step-00000010", "step-00000015", "step-00000020"});
  // Gone before anything was saved from it.
  runs.run("third", "--steps 11 --save never --resume " + runs.step("first", 10));
  fs::remove_all(runs.step("first", 10));
  const ProgramResult gone = run_program("train_gpt2", runs.flags("third", "--steps 11"));
  CHECK(gone.exit_code == 1);
  CHECK_THAT(gone.err, Contains("was to go on from") && Contains("which is not there any more"));
}

TEST_CASE("a damaged checkpoint that is passed over is kept", "[files]") {
  const Runs runs;
  runs.twenty("out");
  fs::resize_file(runs.step("out", 20) + "/weights.safetensors", 5000);
  CHECK_THAT(runs.run("out", "--steps 20"), Contains("falling back"));
  CHECK(runs.start("out").at("step") == 15);
  CHECK(fs::file_size(runs.folder("out") / "set-aside/step-00000020/weights.safetensors") == 5000);
  // Nobody has named the one before it, so it goes as others do.
  runs.run("out", "--steps 22 --save-every 1 --keep 2");
  CHECK(runs.names(runs.folder("out")) == Names{"set-aside", "step-00000021", "step-00000022"});
}

TEST_CASE("lineages", "[files]") {
  Lineage lineage;
  lineage.name(0);
  CHECK(lineage.save() == 0);
  CHECK(lineage.to_json().dump() == R"({"named":[],"saves":[]})");
  for (const std::int64_t save : {1, 2, 6, 7}) {
    lineage.add(save);
  }
  for (const std::int64_t save : {6, 6, 4, 9})
    lineage.name(save);
  CHECK(lineage.to_json().dump() == R"({"named":[6],"saves":[[1,2],[6,7]]})");
  CHECK(lineage.save() == 7);
  std::string held, named;
  for (std::int64_t save = 0; save < 10; ++save) {
    if (lineage.holds(save)) held += std::to_string(save);
    if (lineage.named(save)) named += std::to_string(save);
  }
  CHECK(held == "1267");
  CHECK(named == "6");
  CHECK(Lineage::from_json(lineage.to_json()).to_json() == lineage.to_json());
  for (const std::string bad :
       {"{}", "[1]", "[[1]]", "[[2,1]]", "[[0,1]]", "[[1,2],[2,3]]", "[[1,1.5]]", "[[1,\"2\"]]",
        "[[1,2,3]]", "[[1,99999999999999999999]]", "[[1,18446744073709551615]]", "[[-3,-2]]"}) {
    CAPTURE(bad);
    CHECK_THROWS(Lineage::from_json(Json::parse(R"({"named":[],"saves":)" + bad + "}")));
  }
  for (const std::string bad : {"[]", "{}", R"({"saves":[]})", R"({"saves":[],"named":[1.5]})",
                                R"({"saves":[],"named":3})"})
    CHECK_THROWS(Lineage::from_json(Json::parse(bad)));
}

}  // namespace sluice::test::going_back_test
