#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "apps/checkpoint/checkpoint_manifest.h"
#include "apps/output/run_folder.h"
#include "apps/output/run_lock.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/process/redirected.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Tests whose folder a run may write, and that only one process writes it at a time.

namespace sluice::test::run_folder_test {
namespace {

using namespace std::chrono_literals;

const std::string shape =
    "--n-layer 1 --n-head 2 --n-embd 16 --vocab-size 64 --context 16 --batch-size 4 --threads 1 "
    "--device cpu --val-every 0 --data t.bin ";

struct Folder : TempDir {
  Folder() { write_tokens(path() / "t.bin", 600, 64); }

  ProgramResult train(const std::string& flags) const {
    return run_program("train_gpt2", words(shape + flags), {}, path());
  }
  /// All files below, with their bytes; what a lock says of its writer changes.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(path()))
      found[entry.path().lexically_relative(path()).string()] =
          entry.is_regular_file() && entry.path().filename() != "run.lock" ? read_file(entry.path())
                                                                           : std::string();
    return found;
  }
};

Json writer(const std::string& host, int beats, bool ended) {
  return {{"program", "train_gpt2"},
          {"host", host},
          {"pid", 4711},
          {"started", 5},
          {"namespace", 7},
          {"since", "2026-03-01T12:34:56Z"},
          {"beats", beats},
          {"ended", ended}};
}

}  // namespace

TEST_CASE("a folder that is not a run's is left as it is", "[files]") {
  const Folder folder;
  for (const std::string name : {"config.toml", "log.jsonl", "notes.txt"}) {
    fs::create_directories(folder.path() / "mine");
    write_file(folder.path() / "mine" / name, "mine\n");
    const auto before = folder.files();
    const ProgramResult result = folder.train("--steps 1 --output mine");
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains("--output mine is no run's folder, and it is not empty: it "
                                    "holds " +
                                    name + "; give a new folder"));
    CHECK(folder.files() == before);
    fs::remove_all(folder.path() / "mine");
  }
  // Its own work is: a run's folder, an empty one, and one with what stdout goes to.
  fs::create_directories(folder.path() / "empty");
  CHECK(folder.train("--steps 1 --output empty").exit_code == 0);
  CHECK(folder.train("--steps 2 --output empty").exit_code == 0);
  fs::remove(folder.path() / "empty/run.lock");  // of a program before there was one
  CHECK(folder.train("--steps 3 --output empty").exit_code == 0);
  fs::create_directories(folder.path() / "told");
  std::string error;
  {
    const Redirected redirected(STDERR_FILENO, folder.path() / "told/out.txt");
    error = error_message([&] { RunFolder((folder.path() / "told").string(), "test"); });
  }
  CHECK(error == "(no error)");
  CHECK_THAT(error_message([&] { RunFolder((folder.path() / "told").string(), "test"); }),
             Contains("it holds out.txt"));
}

TEST_CASE("the weights that a run begins with are never those that it replaces", "[files]") {
  const Folder folder;
  REQUIRE(folder.train("--steps 1 --output a").exit_code == 0);
  fs::copy(folder.path() / "a/model", folder.path() / "model");
  const auto before = folder.files();
  const auto refused = [&](const std::string& flags, const std::string& why) {
    const ProgramResult result =
        run_program("train_gpt2", words("--data t.bin --steps 2 --threads 1 --device cpu " + flags),
                    {}, folder.path());
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains(why));
    CHECK(folder.files() == before);
  };
  refused("--model model --output .", "--output . is no run's folder");
  refused("--model a/model --output a", "--model a/model is what a run with --output a replaces");
}

TEST_CASE("only temporaries of a writer are removed, and only by a run that begins", "[files]") {
  const Folder folder;
  REQUIRE(folder.train("--steps 1 --output a").exit_code == 0);
  const fs::path checkpoints = folder.path() / "a/checkpoints";
  const std::set<std::string> mine{"paper.tmp.backup", "step-00000001.tmp.old", "step-1.tmp.12",
                                   "step-00000001.tmp.12.mine"};
  for (const std::string& name : mine) {
    fs::create_directories(checkpoints / name);
    write_file(checkpoints / name / "figure.svg", "mine");
  }
  const std::set<std::string> dead{"step-00000007.tmp.4711", "step-00000001.tmp.12.old"};
  for (const std::string& name : dead)
    fs::create_directories(checkpoints / name);
  const auto there = [&](const std::set<std::string>& names) {
    std::size_t count = 0;
    for (const std::string& name : names)
      count += fs::exists(checkpoints / name) ? 1 : 0;
    return count;
  };
  const auto before = folder.files();
  CHECK(folder.train("--steps 2 --seed 8 --output a").exit_code == 2);
  CHECK(folder.files() == before);
  CHECK(there(dead) == dead.size());
  CHECK(folder.train("--steps 2 --output a").exit_code == 0);
  CHECK(there(dead) == 0);
  CHECK(there(mine) == mine.size());
}

TEST_CASE("one process writes a run's folder at a time", "[files]") {
  const Folder folder;
  // Held up by its output, which nobody reads.
  RunningProgram first("train_gpt2", words(shape + "--steps 100000 --save-every 1 --output a"), {},
                       folder.path());
  REQUIRE(eventually([&] { return fs::exists(folder.path() / "a/config.toml"); }));
  for (const char* const program : {"train_gpt2", "train_mlp"}) {
    const ProgramResult second =
        run_program(program,
                    words((program == std::string("train_gpt2") ? shape : std::string()) +
                          "--steps 1 --output a"),
                    {}, folder.path());
    CHECK(second.exit_code == 2);
    CHECK_THAT(second.err,
               Contains("--output a is in use: process " + std::to_string(first.id()) + " on ") &&
                   Contains("(train_gpt2) writes it since 20") &&
                   Contains("wait for its end, or give another --output"));
  }
  first.send(SIGKILL);
  first.finish();
  // A lock ends with its process, however that ends.
  CHECK(folder.train("--steps 1 --output a").exit_code == 0);
}

TEST_CASE("runs that begin in the same second have folders of their own", "[files]") {
  const Folder folder;
  std::vector<std::unique_ptr<RunningProgram>> all;
  for (int i = 0; i < 4; ++i)
    all.push_back(std::make_unique<RunningProgram>("train_gpt2", words(shape + "--steps 1"),
                                                   std::string(), folder.path()));
  for (const auto& one : all) {
    const ProgramResult result = one->finish();
    CHECK(result.exit_code == 0);
    CHECK(result.err == "");
  }
  std::size_t models = 0;
  for (const auto& run : fs::directory_iterator(folder.path() / "runs"))
    models += fs::exists(run.path() / "model/model.safetensors") ? 1 : 0;
  CHECK(models == 4);
  // One that is refused leaves none.
  fs::remove_all(folder.path() / "runs");
  CHECK(folder.train("--steps 1 --n-embd 17 --n-head 2").exit_code == 2);
  CHECK(folder.train("--steps 1 --skip-batches 3").exit_code == 2);
  CHECK_FALSE(fs::exists(folder.path() / "runs"));
}

TEST_CASE("a run that another one has overtaken does not begin", "[files]") {
  const TempDir dir;
  RunFolder slow((dir.path() / "out").string(), "test");
  const fs::path checkpoint = dir.path() / "out/checkpoints/step-00000001";
  fs::create_directories(checkpoint);
  {
    RunFolder quick((dir.path() / "out/").string() + "../quick", "test");
    quick.begin();
    CHECK(fs::exists(dir.path() / "quick/run.lock"));
  }
  CHECK_THAT(error_message([&] { slow.begin(); }), Contains("no run's folder"));
  write_file(dir.path() / "out/run.lock", "");
  write_file(checkpoint / "state.json", "{}");
  CHECK_THAT(error_message([&] { slow.begin(); }),
             Contains("another run has trained in --output") && Contains("start this one again"));
}

TEST_CASE("where locks do not reach, a writer that counts is found", "[files]") {
  const TempDir dir;
  const fs::path file = dir.path() / "run.lock";
  const auto refusal = [&] { return error_message([&] { RunLock(file, 40ms); }); };
  // A writer on another computer: silent, ended, and one that counts.
  write_file(file, writer("elsewhere", 3, false).dump());
  CHECK(refusal() == "(no error)");
  write_file(file, writer("elsewhere", 3, true).dump());
  CHECK(refusal() == "(no error)");
  write_file(file, "no JSON");
  CHECK(refusal() == "(no error)");
  for (const char* const name : {"pid", "started", "namespace", "beats"}) {
    Json no_integer = writer("elsewhere", 3, false);
    no_integer[name] = 1e300;
    write_file(file, no_integer.dump());
    CHECK(refusal() == "(no error)");
  }
  write_file(file, "no JSON");
  std::atomic<bool> ends{false};
  std::thread counting([&] {
    for (int beats = 0; !ends; ++beats) {
      write_file(dir.path() / "new", writer("elsewhere", beats, false).dump());
      fs::rename(dir.path() / "new", file);
      std::this_thread::sleep_for(5ms);
    }
  });
  while (!fs::exists(dir.path() / "run.lock") || read_file(file) == "no JSON")
    std::this_thread::yield();
  CHECK_THAT(refusal(), Contains("process 4711 on elsewhere (train_gpt2) writes it since "
                                 "2026-03-01T12:34:56Z"));
  ends = true;
  counting.join();

  // Here the lock decides.
  fs::remove(file);
  {
    RunLock held(file, 1h);
    CHECK_THAT(refusal(), Contains("another process has just begun to write it"));
    held.begin("a test");
    CHECK_THAT(refusal(), Contains("process " + std::to_string(::getpid())) &&
                              Contains("(a test) writes it since"));
    CHECK(Json::parse(read_file(file)).at("ended") == false);
    CHECK(read_file(file).size() == 1024);
  }
  CHECK(Json::parse(read_file(file)).at("ended") == true);
  CHECK(refusal() == "(no error)");
  {
    RunLock counts(file, 1ms);
    counts.begin("a test");
    CHECK(eventually([&] {
      const Json now = Json::parse(read_file(file), nullptr, false);
      return !now.is_discarded() && now.at("beats") > 3;
    }));
  }
  // Nobody is led to another file by a link.
  fs::rename(file, dir.path() / "other");
  fs::create_symlink(dir.path() / "other", file);
  CHECK_THAT(refusal(), Contains("cannot open " + file.string()));
}

TEST_CASE("a run does not go on with one other token in the middle of its data", "[files]") {
  const Folder folder;
  const fs::path data = folder.path() / "t.bin";
  write_tokens(data, 500000, 64);
  const std::string run = "--output a --steps ";
  REQUIRE(folder.train(run + "1").exit_code == 0);
  const auto exchange_bit = [&] {
    std::string tokens = read_file(data);
    tokens[2 * 150000] ^= 1;
    write_file(data, tokens);
  };
  exchange_bit();
  const ProgramResult result = folder.train(run + "2");
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("cannot be resumed: its data_checksum is "));

  // A checkpoint that an older program has written has no such sum.
  exchange_bit();
  const fs::path checkpoint = folder.path() / "a/checkpoints/step-00000001";
  CheckpointManifest manifest = read_manifest(checkpoint);
  Json fields = *manifest.fields;
  REQUIRE(fields.at("run").erase("data_checksum") == 1);
  manifest.fields = std::make_shared<const Json>(fields);
  write_file(checkpoint / "state.json", to_text(manifest));
  CHECK_THAT(folder.train(run + "2").out, Contains("resumed"));
}

}  // namespace sluice::test::run_folder_test
