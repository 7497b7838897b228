#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// A run that was stopped and continued ends with the bits of one that was not. Everything goes
// through the program itself.

namespace sluice::test::resume_test {
namespace {

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The results that must be equal in two runs.
struct Outcome {
  std::string weights, optimizer, model;
  std::map<std::int64_t, std::string> steps;  ///< loss, norm and rate as the log has them

  bool operator==(const Outcome&) const = default;
};

fs::path newest(const fs::path& output) {
  const auto all = list_checkpoints(output / "checkpoints");
  REQUIRE_FALSE(all.empty());
  return all.back();
}

std::map<std::int64_t, std::string> logged_steps(const fs::path& output) {
  std::map<std::int64_t, std::string> steps;
  std::istringstream log(read_file(output / "log.jsonl"));
  for (std::string line; std::getline(log, line);) {
    const Json event = Json::parse(line);
    if (event.at("event") != "train") continue;
    const std::string values = Json{event.at("loss"), event.at("grad_norm"), event.at("lr")}.dump();
    const auto [entry, inserted] = steps.emplace(event.at("step").get<std::int64_t>(), values);
    // A step that was done again after a crash must come out the same.
    CHECK(entry->second == values);
  }
  return steps;
}

Json last_event(const fs::path& output) {
  const std::string log = read_file(output / "log.jsonl");
  return Json::parse(log.substr(log.rfind('\n', log.size() - 2) + 1));
}

Outcome outcome(const fs::path& output) {
  return {read_file(newest(output) / "weights.safetensors"),
          read_file(newest(output) / "optimizer.safetensors"),
          read_file(output / "model" / "model.safetensors"), logged_steps(output)};
}

/// A folder with data for runs of a tiny model, and the flags they share.
struct Runs : TempDir {
  // 600 tokens are 37 windows: 20 updates of 4 go through more than two epochs.
  Runs() { write_tokens(path() / "t.bin", 600, 64); }

  fs::path out(const std::string& name) const { return path() / name; }

  Arguments flags(const std::string& output, int steps, const Arguments& more = {}) const {
    Arguments all{"--n-layer",      "1",  "--n-head",    "2",  "--n-embd",      "16",
                  "--vocab-size",   "64", "--context",   "16", "--batch-size",  "4",
                  "--warmup-steps", "3",  "--log-every", "1",  "--peak-tflops", "1"};
    return all + Arguments{"--data",  (path() / "t.bin").string(), "--output", out(output).string(),
                           "--steps", std::to_string(steps)} +
           more;
  }
  std::string run(const std::string& output, int steps, const Arguments& more = {}) const {
    return run_well("train_gpt2", flags(output, steps, more));
  }
};

void flip_byte(const fs::path& file, std::size_t at) {
  std::string bytes = read_file(file);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
  write_file(file, bytes);
}

struct Variant {
  const char* what;
  Arguments flags;
};

const std::vector<Variant> variants{
    {"dropout", {"--dropout", "0.2", "--threads", "1"}},
    {"accumulation", {"--micro-batch", "1", "--dropout", "0.1", "--threads", "2"}},
    {"sequential sgd", {"--data-order", "sequential", "--optimizer", "sgd", "--threads", "2"}},
    {"muon", {"--optimizer", "muon", "--threads", "2"}},
    {"bf16", {"--precision", "bf16", "--threads", "1"}},
    {"fp16", {"--precision", "fp16", "--threads", "1"}},
};

}  // namespace

TEST_CASE("7 steps and 13 more are 20 steps, to the bit") {
  const Runs runs;
  for (std::int64_t place = 0; const auto& [what, flags] : variants) {
    INFO(what);
    const std::string name = what;
    const auto constant = flags + Arguments{"--lr-schedule", "constant"};
    runs.run(name + " whole", 20, constant);
    runs.run(name + " parts", 7, constant);
    runs.run(name + " parts", 20, constant);
    const Outcome whole = outcome(runs.out(name + " whole"));
    CHECK(whole.steps.size() == 20);
    CHECK(outcome(runs.out(name + " parts")) == whole);

    if (!in_form(2, {place++})) continue;
    // The cosine depends on the number of steps, so this run goes on from a checkpoint.
    runs.run(name + " cosine", 20, flags + Arguments{"--save-every", "7", "--keep", "3"});
    const auto middle = runs.out(name + " cosine") / "checkpoints" / "step-00000007";
    CHECK_THAT(runs.run(name + " on", 20, flags + Arguments{"--resume", middle.string()}),
               Contains("resumed") && Contains("step-00000007"));
    Outcome expected = outcome(runs.out(name + " cosine"));
    std::erase_if(expected.steps, [](const auto& entry) { return entry.first <= 7; });
    CHECK(outcome(runs.out(name + " on")) == expected);
    CHECK(expected.weights != whole.weights);
  }
}

TEST_CASE("a run that goes on keeps the micro-batch that flags do not name") {
  const Runs runs;
  const Arguments single{"--lr-schedule", "constant", "--micro-batch", "1"};
  runs.run("whole", 9, single);
  runs.run("parts", 4, single);
  const Arguments open{"--lr-schedule", "constant"};
  CHECK_THAT(runs.run("parts", 9, open), Contains("--micro-batch 1 "));
  CHECK(outcome(runs.out("parts")) == outcome(runs.out("whole")));
  CHECK_THAT(runs.run("parts", 12, open + Arguments{"--micro-batch", "2"}),
             Contains("--micro-batch 2 "));
}

TEST_CASE("two runs give the same bytes, with 1, 2 or 3 threads") {
  const Runs runs;
  for (const std::string precision : {"fp32", "bf16"}) {
    const Arguments flags{"--precision", precision, "--dropout", "0.1"};
    runs.run(precision, 8, flags + Arguments{"--threads", "1"});
    const Outcome reference = outcome(runs.out(precision));
    for (const char* threads : {"1", "2", "3"}) {
      INFO(precision << ", threads " << threads);
      const std::string name = precision + threads;
      runs.run(name, 8, flags + Arguments{"--threads", threads});
      CHECK(outcome(runs.out(name)) == reference);
    }
  }
}

TEST_CASE("what is saved beside training is what is saved at once", "[threads]") {
  const Runs runs;
  const Arguments flags{"--threads", "1", "--save-every", "2", "--keep", "9"};
  runs.run("waits", 9, flags);
  runs.run("copies", 9, flags + Arguments{"--save", "background"});
  const auto all = list_checkpoints(runs.out("waits") / "checkpoints");
  REQUIRE(all.size() == 5);
  for (const fs::path& checkpoint : all) {
    CAPTURE(checkpoint.filename().string());
    for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"})
      CHECK(read_file(checkpoint / file) ==
            read_file(runs.out("copies") / "checkpoints" / checkpoint.filename() / file));
  }
  CHECK(outcome(runs.out("copies")) == outcome(runs.out("waits")));
  std::istringstream log(read_file(runs.out("copies") / "log.jsonl"));
  for (std::string line; std::getline(log, line);)
    if (const Json event = Json::parse(line); event.at("event") == "checkpoint")
      CHECK(event.at("ms").get<double>() >= event.at("waited_ms").get<double>());
  // The copy is in the plan, which is kept to the byte.
  const Json end = last_event(runs.out("copies"));
  CHECK(end.at("planned_bytes") == end.at("engine_peak_bytes"));
  CHECK(end.at("planned_bytes").get<std::size_t>() >
        last_event(runs.out("waits")).at("planned_bytes").get<std::size_t>());
}

TEST_CASE("a checkpoint that cannot be written is told of, and the run goes on", "[threads]") {
  const Runs runs;
  for (const Arguments& more : {Arguments(), Arguments{"--save", "background"}}) {
    CAPTURE(more.size());
    const std::string name = more.empty() ? "here" : "beside";
    // A file has the name of the folder of checkpoints.
    fs::create_directories(runs.out(name));
    write_file(runs.out(name) / "checkpoints", "");
    write_file(runs.out(name) / "run.lock", "");
    const ProgramResult result =
        run_program("train_gpt2", runs.flags(name, 6, Arguments{"--save-every", "2"} + more));
    CHECK(result.exit_code == 1);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains("the checkpoint was not saved") && Contains("checkpoints"));
    CHECK_THAT(result.out, Contains("step 2 was not saved") && Contains("step 4 was not saved") &&
                               Contains("step 6/6"));
    CHECK_THAT(read_file(runs.out(name) / "log.jsonl"),
               Contains("step 4 was not saved") && Contains("step 6 was not saved"));
  }
}

TEST_CASE("validation, samples and checkpoints in between do not change the training") {
  const Runs runs;
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += "to be or not to be " + std::to_string(i) + "\n";
  write_file(runs.path() / "text.txt", text);
  const Arguments flags{"--data",          (runs.path() / "text.txt").string(),
                        "--vocab-size",    "256",
                        "--threads",       "1",
                        "--sample-tokens", "5"};
  auto with = [&](const std::string& output, const Arguments& more) {
    Arguments all = runs.flags(output, 9, flags + more);
    // The text takes the place of the tokens.
    const auto data = std::find(all.begin(), all.end(), "--data");
    all.erase(data, data + 2);
    const auto vocabulary = std::find(all.begin(), all.end(), "--vocab-size");
    all.erase(vocabulary, vocabulary + 2);
    run_well("train_gpt2", all);
    return outcome(runs.out(output));
  };
  const Outcome quiet = with("quiet", {"--val-every", "0"});
  CHECK(with("busy", {"--val-every", "2", "--sample-every", "3", "--save-every", "1", "--keep",
                      "1"}) == quiet);
}

TEST_CASE("a signal ends the run after its step, and the resumed run ends with the same bytes") {
  const Runs runs;
  const int signal = GENERATE(SIGINT, SIGTERM, SIGHUP, SIGUSR1);
  INFO("signal " << signal);
  const Arguments flags{"--threads", "1", "--dropout", "0.1"};
  runs.run("whole", 60, flags);
  {
    // Its output fills the pipe before the last step: it cannot end before the signal comes.
    RunningProgram program("train_gpt2", runs.flags("parts", 60, flags));
    const auto log = runs.out("parts") / "log.jsonl";
    REQUIRE(eventually(
        [&] { return fs::exists(log) && read_file(log).find("\"train\"") != std::string::npos; }));
    program.send(signal);
    const ProgramResult result = program.finish();
    CHECK(result.signal == 0);
    CHECK(result.exit_code == 0);
    CHECK(result.err == "");
    CHECK_THAT(result.out, Contains("received after step") && Contains("go on with"));
  }
  const auto done = logged_steps(runs.out("parts")).size();
  CHECK(done > 0);
  CHECK(done < 60);
  CHECK(newest(runs.out("parts")).filename() ==
        "step-000000" + std::string(done < 10 ? "0" : "") + std::to_string(done));
  CHECK(fs::exists(runs.out("parts") / "model"));
  CHECK_THAT(read_file(runs.out("parts") / "log.jsonl"), Contains("\"stopped_by\":\"SIG"));
  CHECK_THAT(runs.run("parts", 60, flags), Contains("resumed"));
  CHECK(outcome(runs.out("parts")) == outcome(runs.out("whole")));
}

TEST_CASE("a second signal ends the program at once, also where its output is held up") {
  const Runs runs;
  RunningProgram program("train_gpt2", runs.flags("out", 100000, {"--threads", "1"}));
  // Nobody reads what it prints, so it comes to a halt.
  const auto log = runs.out("out") / "log.jsonl";
  std::uintmax_t size = 0;
  int still = 0;
  const auto halted = [&] {
    const std::uintmax_t before = std::exchange(size, fs::exists(log) ? fs::file_size(log) : 0);
    still = size > 0 && size == before ? still + 1 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return still == 10;
  };
  REQUIRE(eventually(halted));
  program.send(SIGTERM);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(700));  // two within half a second are one request
  program.send(SIGTERM);
  CHECK(program.finish().signal == SIGTERM);
}

TEST_CASE("after a kill the run goes on from its newest checkpoint to the same bytes") {
  const Runs runs;
  const Arguments flags{"--threads", "1", "--save-every", "2"};
  runs.run("whole", 60, flags);
  {
    RunningProgram program("train_gpt2", runs.flags("parts", 60, flags));
    REQUIRE(
        eventually([&] { return list_checkpoints(runs.out("parts") / "checkpoints").size() > 1; }));
    program.send(SIGKILL);
    CHECK(program.finish().signal == SIGKILL);
  }
  CHECK_THAT(runs.run("parts", 60, flags), Contains("resumed"));
  CHECK(outcome(runs.out("parts")) == outcome(runs.out("whole")));
}

TEST_CASE("a damaged newest checkpoint is refused by name and the older one is used") {
  const Runs runs;
  const Arguments flags{"--threads", "1", "--lr-schedule", "constant"};
  runs.run("base", 6, flags + Arguments{"--save-every", "3"});
  runs.run("whole", 8, flags);
  const Outcome expected = outcome(runs.out("whole"));
  int number = 0;
  const auto check = [&](const std::string& file, const std::string& what,
                         const std::function<void(const fs::path&)>& damage) {
    const std::string name = "damaged" + std::to_string(number++);
    fs::copy(runs.out("base"), runs.out(name), fs::copy_options::recursive);
    damage(newest(runs.out(name)) / file);
    INFO(file << ": " << what);
    const ProgramResult result = run_program("train_gpt2", runs.flags(name, 8, flags));
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.out, Contains("warning") && Contains("step-00000006/" + file) &&
                               Contains("falling back") && Contains("step-00000003 (step 3)"));
    if (result.exit_code != 0) return;
    CHECK_THAT(read_file(runs.out(name) / "log.jsonl"), Contains("\"warning\"") && Contains(file));
    CHECK(outcome(runs.out(name)).weights == expected.weights);
    CHECK(outcome(runs.out(name)).optimizer == expected.optimizer);
  };
  for (const std::string file : {"weights.safetensors", "optimizer.safetensors", "state.json"}) {
    check(file, "first byte", [](const fs::path& path) { flip_byte(path, 0); });
    check(file, "middle byte",
          [](const fs::path& path) { flip_byte(path, fs::file_size(path) / 2); });
    check(file, "last byte",
          [](const fs::path& path) { flip_byte(path, fs::file_size(path) - 1); });
    check(file, "truncated",
          [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) / 2); });
    check(file, "absent", [](const fs::path& path) { fs::remove(path); });
  }
}

TEST_CASE("without an older checkpoint, damage ends the program in one line") {
  const Runs runs;
  runs.run("out", 2, {"--threads", "1"});
  flip_byte(newest(runs.out("out")) / "weights.safetensors", 900);
  const Arguments exact{"--resume", newest(runs.out("out")).string()};
  for (const auto& [output, more] : {std::pair("out", Arguments{}), std::pair("new", exact)}) {
    const ProgramResult result = run_program("train_gpt2", runs.flags(output, 4, more));
    CHECK(result.exit_code == 1);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains("weights.safetensors is damaged"));
  }
}

TEST_CASE("left-over temporaries are ignored and removed, and old checkpoints go") {
  const Runs runs;
  runs.run("out", 9, {"--threads", "1", "--save-every", "2", "--keep", "3"});
  const auto folder = runs.out("out") / "checkpoints";
  const auto names = [&] {
    std::vector<std::string> list;
    for (const auto& entry : fs::directory_iterator(folder))
      list.push_back(entry.path().filename().string());
    std::sort(list.begin(), list.end());
    return list;
  };
  CHECK(names() == std::vector<std::string>{"step-00000006", "step-00000008", "step-00000009"});
  fs::copy(folder / "step-00000006", folder / "step-00000099.tmp.4711");
  fs::create_directory(folder / "step-00000098.tmp.1");
  CHECK_THAT(runs.run("out", 10, {"--threads", "1"}), Contains("step-00000009 (step 9)"));
  // As many as before are kept.
  CHECK(names() == std::vector<std::string>{"step-00000008", "step-00000009", "step-00000010"});
}

TEST_CASE("a finished run has nothing to do and stays as it is") {
  const Runs runs;
  runs.run("out", 4, {"--threads", "1"});
  const Outcome before = outcome(runs.out("out"));
  CHECK_THAT(runs.run("out", 4, {"--threads", "1"}), Contains("nothing to do"));
  CHECK(outcome(runs.out("out")) == before);
}

TEST_CASE("a checkpoint of another run is refused by what differs") {
  const Runs runs;
  runs.run("out", 2, {"--threads", "1"});
  write_tokens(runs.path() / "other.bin", 600, 64, 2);
  const std::string before = read_file(newest(runs.out("out")) / "state.json");
  const std::vector<std::pair<Arguments, const char*>> rows{
      {{"--seed", "7"}, "seed"},
      {{"--optimizer", "sgd"}, "optimizer"},
      {{"--precision", "bf16"}, "precision"},
      {{"--data-order", "sequential"}, "data_order"},
      {{"--seq-len", "8"}, "seq_len"},
      {{"--resume", "never"}, "never"},
  };
  for (const auto& [more, word] : rows) {
    INFO(word);
    const ProgramResult result = run_program("train_gpt2", runs.flags("out", 4, more));
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(word));
    CHECK(read_file(newest(runs.out("out")) / "state.json") == before);
  }
}

}  // namespace sluice::test::resume_test
