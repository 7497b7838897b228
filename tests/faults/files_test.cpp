#include <algorithm>
#include <csignal>
#include <functional>
#include <map>

#include "tests/faults/trace.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"

// Programs that replace what is there are killed on the way: nothing of the user's is lost, and old
// files never lie beside new ones (rows 8, 9 and 11 of what a run may touch).

namespace sluice::test::files_test {
namespace {

using Contents = std::map<std::string, std::string>;

/// The files of a folder by name, or of those below it too, by path.
Contents files_of(const fs::path& folder) {
  Contents all;
  std::error_code none;
  for (fs::directory_iterator at(folder, none), end; !none && at != end; at.increment(none))
    if (at->is_regular_file()) all[at->path().filename().string()] = read_file(at->path());
  return all;
}

const Arguments changing{"rename", "renameat", "renameat2", "unlink",   "unlinkat",
                         "rmdir",  "mkdir",    "fsync",     "ftruncate"};

/// A folder with what a program is to replace, which is copied before each call of it.
class Replaced : public TempDir {
 public:
  Replaced(std::string program, const Arguments& arguments)
      : TempDir(FaultRuns::in_memory()), command_{(fs::path(SLUICE_BIN_DIR) / program).string()} {
    command_.insert(command_.end(), arguments.begin(), arguments.end());
  }

  fs::path base() const { return path() / "base"; }
  fs::path work() const { return path() / "work"; }

  ProgramResult call(const Arguments& tracer = {}) const {
    Arguments all = tracer;
    all.insert(all.end(), command_.begin(), command_.end());
    return RunningProgram("/usr/bin/env", all, {}, work()).finish();
  }
  void begin_anew() const {
    fs::remove_all(work());
    fs::copy(base(), work(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }

  /// The calls that change something, with `fault` done to all calls of one name.
  std::vector<Call> calls(const Arguments& fault = {}) const {
    begin_anew();
    std::string names;
    for (const std::string& name : changing)
      names += (names.empty() ? "" : ",") + name;
    Arguments tracer = tracing((path() / "log").string(), names);
    tracer.insert(tracer.end(), fault.begin(), fault.end());
    const ProgramResult result = call(tracer);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    auto calls = parse_trace(read_file(path() / "log"));
    REQUIRE(calls.size() > 5);
    return calls;
  }

  /// Kills the program at each of its calls; `check` says what is wrong with what is left, and once
  /// more when the next call of the program has ended well.
  void kill_at_each(Tally& tally, const Arguments& fault,
                    const std::function<std::string(bool again)>& check) const {
    for (const Call& call : calls(fault)) {
      if (call.failed()) continue;
      begin_anew();
      Arguments tracer = injecting(call, "signal=KILL");
      // strace takes one list of names, and a fault to one of them for each option.
      tracer.insert(tracer.end(), fault.begin(), fault.end());
      for (std::size_t i = 0; !fault.empty() && i < tracer.size(); ++i)
        if (tracer[i].starts_with("trace=")) tracer[i] += ",renameat2";
      const ProgramResult killed = this->call(tracer);
      Problems problems;
      problems.require(killed.signal == SIGKILL || killed.exit_code == 128 + SIGKILL,
                       "it was not killed but ended with " + std::to_string(killed.exit_code));
      problems.add(check(false));
      const ProgramResult next = this->call();
      problems.require(next.exit_code == 0, "the next call says " + next.err);
      problems.add(check(true));
      for (const auto& name : temporaries(work()))
        problems.add(name + " was left behind");
      tally.round(text_of(call), problems.text());
    }
  }

 private:
  Arguments command_;
};

const Arguments no_exchange{"-e", "inject=renameat2:error=EINVAL"};

/// Returns which of a user's files beside a model are missing. They may be in the model's folder
/// or, until somebody replaces the folder again, in a temporary folder beside or inside it.
std::string missing(const fs::path& work, const Contents& mine, bool settled) {
  Problems problems;
  for (const auto& [name, text] : mine) {
    bool found = false;
    for (const auto& entry : fs::recursive_directory_iterator(work)) {
      const std::string at = entry.path().string();
      if (!entry.is_regular_file() || !at.ends_with("/" + name) || read_file(at) != text) continue;
      found = found || !settled || entry.path() == work / "model" / name;
    }
    problems.require(found, name + (settled ? " is not where it was" : " is lost"));
  }
  return problems.text();
}

}  // namespace

TEST_CASE("convert over another model, killed at any call, leaves the old or the new one",
          "[files]") {
  if (!have_strace()) return;
  const Replaced replaced("convert", {"--input", "new", "--output", "model"});
  DecoderConfig config = small_config();
  write_model(replaced.base() / "raw", config);
  REQUIRE(run_program("convert", {"--input", "raw", "--output", "model"}, {}, replaced.base())
              .exit_code == 0);
  fs::remove_all(replaced.base() / "raw");
  config.n_embd = 8;
  config.vocab_size = 256;
  write_model(replaced.base() / "new", config, 2);
  // The old one has another tokenizer, and shards beside its file.
  const Contents mine{{"README", "mine"}, {".git/HEAD", "ref"}, {"notes/config.json", "mine"}};
  const fs::path model = replaced.base() / "model";
  write_file(model / "chars.json", R"({"characters": ["a"]})");
  write_file(model / "tokenizer.json", R"({"model": {"merges": []}})");
  fs::copy(model / "model.safetensors", model / "model-00001-of-00001.safetensors");
  write_file(model / "model.safetensors.index.json", "{}");
  const Contents old = files_of(model);
  write_file(replaced.base() / "new" / "bytes.json",
             R"({"tokenizer": "bytes", "vocab_size": 256})");
  for (const auto& [name, text] : mine) {
    fs::create_directories((model / name).parent_path());
    write_file(model / name, text);
  }
  replaced.begin_anew();
  REQUIRE(replaced.call().exit_code == 0);
  Contents fresh = files_of(replaced.work() / "model");
  REQUIRE(fresh.contains("bytes.json"));
  CHECK_FALSE(fresh.contains("chars.json"));
  CHECK_FALSE(fresh.contains("model-00001-of-00001.safetensors"));
  CHECK_FALSE(fresh.contains("model.safetensors.index.json"));
  CHECK(fresh.at("README") == "mine");
  fresh.erase("README");
  const auto check = [&](bool one_by_one, bool again) {
    Problems problems;
    Contents found = files_of(replaced.work() / "model");
    found.erase("README");
    problems.require(found == fresh || (!again && (found == old ||
                                                   (one_by_one && !found.contains("config.json")))),
                     "old files and new ones lie side by side");
    problems.add(missing(replaced.work(), mine, again));
    return problems.text();
  };
  {
    Tally tally("files: convert killed, folders change places");
    replaced.kill_at_each(tally, {}, [&](bool again) { return check(false, again); });
    CHECK(tally.rounds() > 10);
  }
  Tally tally("files: convert killed, one file after another");
  replaced.kill_at_each(tally, no_exchange, [&](bool again) { return check(true, again); });
  CHECK(tally.rounds() > 20);
}

TEST_CASE("two converts into one folder at the same time leave a model that is whole", "[files]") {
  TempDir dir;
  DecoderConfig config = small_config();
  config.vocab_size = 256;
  for (const char* const name : {"one", "two"}) {
    write_model(dir.path() / name, config);
    write_file(dir.path() / name / "bytes.json", R"({"tokenizer": "bytes", "vocab_size": 256})");
    config.n_embd = 8;
  }
  const auto convert = [&](const char* input, const char* output) {
    return Arguments{"--input", input, "--output", output};
  };
  for (const char* const name : {"one", "two"})
    REQUIRE(run_program("convert", convert(name, (std::string("alone ") + name).c_str()), {},
                        dir.path())
                .exit_code == 0);
  Tally tally("files: two converts at the same time");
  for (int round = 0; round < by_form(6, 50); ++round) {
    RunningProgram one("convert", convert("one", "both"), {}, dir.path()),
        two("convert", convert("two", "both"), {}, dir.path());
    const ProgramResult first = one.finish(), second = two.finish();
    Problems problems;
    problems.require(first.exit_code == 0 && second.exit_code == 0, first.err + second.err);
    const Contents both = files_of(dir.path() / "both");
    problems.require(
        both == files_of(dir.path() / "alone one") || both == files_of(dir.path() / "alone two"),
        "it is a mix of both");
    for (const auto& name : temporaries(dir.path()))
      problems.add(name + " was left behind");
    tally.round("round " + std::to_string(round), problems.text());
  }
}

TEST_CASE("a link that somebody has put in the way of a temporary is not followed", "[files]") {
  TempDir dir;
  write_model(dir.path() / "model");
  fs::create_directory(dir.path() / "out");
  write_file(dir.path() / "victim", "somebody's");
  fs::create_symlink("../victim", dir.path() / "out" / "model.safetensors.tmp");
  const ProgramResult result =
      run_program("convert", {"--input", "model", "--output", "out"}, {}, dir.path());
  CHECK(result.err == "");
  CHECK(result.exit_code == 0);
  CHECK(read_file(dir.path() / "victim") == "somebody's");
  CHECK(fs::is_symlink(dir.path() / "out" / "model.safetensors.tmp"));
  CHECK_FALSE(fs::is_symlink(dir.path() / "out" / "model.safetensors"));
}

TEST_CASE("the best model and its loss change together, wherever a run is killed", "[files]") {
  if (!have_strace()) return;
  FaultRuns runs(kinds().front());
  Tally tally("files: the best model");
  const auto flags = [](int steps) {
    return Flags{{"--val-every", "1"}, {"--keep-best", "true"}, {"--save", "never"},
                 {"--lr", "0.01"},     {"--warmup-steps", "0"}, {"--steps", std::to_string(steps)}};
  };
  std::vector<Contents> good{{}};
  for (int steps = 0; steps <= 3; ++steps) {
    const std::string output = "best " + std::to_string(steps);
    const Ended ended = runs.run(output, {.flags = flags(steps)});
    INFO(ended.err);
    REQUIRE(ended.exit_code == 0);
    good.push_back(files_of(runs.path() / output / "best"));
  }
  REQUIRE(good[4].contains("validation.json"));
  REQUIRE(good[4] != good[3]);
  auto calls = traced(runs, "traced", changing, flags(3));
  std::erase_if(calls, [](const Call& call) {
    return call.name == "fsync" || call.line.find("best") == std::string::npos;
  });
  REQUIRE(calls.size() > 10);
  for (const Call& call : thinned(calls, 9)) {
    const Ended ended =
        runs.run("killed", {.flags = flags(3), .tracer = injecting(call, "signal=KILL")});
    Problems problems;
    problems.require(ended.signal == SIGKILL || ended.exit_code != 0, "it was not killed");
    const Contents left = files_of(runs.path() / "killed" / "best");
    problems.require(std::ranges::find(good, left) != good.end(), "best/ is a mix");
    problems.require(runs.run("killed", {.flags = flags(3)}).exit_code == 0, "it cannot go on");
    problems.require(files_of(runs.path() / "killed" / "best") == good[4], "not the best one");
    tally.round(text_of(call), problems.text());
    runs.forget("killed");
  }
}

TEST_CASE("prepare_data, killed at any call, leaves no new file beside an old one", "[files]") {
  if (!have_strace()) return;
  std::string text;
  for (int i = 0; text.size() < 3000; ++i)
    text += "to be or not to be " + std::to_string(i * i) + ", that is the question\n";
  for (const bool shards : {false, true}) {
    Arguments arguments{"--input", "text.txt", "--tokenizer", "chars", "--output", "data"};
    if (shards) arguments.insert(arguments.end(), {"--shard-tokens", "1000"});
    const Replaced replaced("prepare_data", arguments);
    fs::create_directory(replaced.base());
    write_file(replaced.base() / "text.txt", text.substr(0, 2500) + "ABC");
    replaced.begin_anew();
    REQUIRE(replaced.call().exit_code == 0);
    const Contents old = files_of(replaced.work() / "data");
    fs::remove_all(replaced.base());
    fs::copy(replaced.work(), replaced.base(), fs::copy_options::recursive);
    write_file(replaced.base() / "text.txt", text);
    write_file(replaced.base() / "data" / "README", "mine");
    replaced.begin_anew();
    REQUIRE(replaced.call().exit_code == 0);
    Contents fresh = files_of(replaced.work() / "data");
    fresh.erase("README");
    REQUIRE(fresh.at("chars.json") != old.at("chars.json"));
    Tally tally(shards ? "files: prepare_data killed, shards" : "files: prepare_data killed");
    replaced.kill_at_each(tally, {}, [&](bool again) {
      Problems problems;
      Contents found = files_of(replaced.work() / "data");
      problems.require(found["README"] == "mine", "a file of the user's is lost");
      found.erase("README");
      if (again) problems.require(found == fresh, "the next call does not put it right");
      std::erase_if(found, [](const auto& file) {
        return !file.first.ends_with(".bin") && !file.first.ends_with(".json");
      });
      const auto is_token = [](const auto& file) { return file.first.ends_with(".bin"); };
      const bool tokens = std::ranges::any_of(found, is_token);
      const bool begun = found.contains("train.bin") || found.contains("train_000001.bin");
      // Tokens, be they for training or validation, are all of one call and have its tokenizer;
      // and where the first for training are there, so are all.
      const auto is_of = [&](const Contents& call) {
        return begun ? found == call : std::ranges::includes(call, found);
      };
      problems.require(!tokens || is_of(old) || is_of(fresh),
                       "tokens lie beside files of another call");
      return problems.text();
    });
    CHECK(tally.rounds() > 10);
  }
}

TEST_CASE("two calls of prepare_data for one folder publish one after the other", "[files]") {
  if (!have_strace()) return;
  TempDir dir;
  const auto arguments = [](const char* input) {
    return Arguments{"--input", input, "--tokenizer", "chars", "--output", "data"};
  };
  write_file(dir.path() / "one.txt", std::string(500, 'a') + "one");
  write_file(dir.path() / "two.txt", std::string(900, 'b') + "two");
  Contents alone;
  for (const char* const input : {"one.txt", "two.txt"}) {
    fs::remove_all(dir.path() / "data");
    REQUIRE(run_program("prepare_data", arguments(input), {}, dir.path()).exit_code == 0);
    alone = files_of(dir.path() / "data");
  }
  fs::remove_all(dir.path() / "data");
  // The first waits before each of its files gets its name.
  Arguments slow = injecting("rename", "delay_enter=200000");
  slow.push_back((fs::path(SLUICE_BIN_DIR) / "prepare_data").string());
  const Arguments one = arguments("one.txt");
  slow.insert(slow.end(), one.begin(), one.end());
  RunningProgram first("/usr/bin/env", slow, {}, dir.path());
  REQUIRE(eventually([&] { return fs::exists(dir.path() / "data" / "chars.json"); }));
  const ProgramResult second = run_program("prepare_data", arguments("two.txt"), {}, dir.path());
  CHECK(second.err == "");
  CHECK(second.exit_code == 0);
  CHECK(first.finish().exit_code == 0);
  CHECK(files_of(dir.path() / "data") == alone);
}

}  // namespace sluice::test::files_test
