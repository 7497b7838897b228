#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <vector>

#include "apps/cli/command_line.h"
#include "apps/cli/processor.h"
#include "apps/config/train_config.h"
#include "apps/data/tokens/token_source.h"
#include "tests/support/byte_model_folder.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

// Resources that a shell or a system denies a program: streams, file sizes, memory, instructions,
// /proc.

namespace sluice::test::limits_test {
namespace {

const std::string bin = SLUICE_BIN_DIR;

struct Folder : ByteModelFolder {
  Folder() { write_tokens(path() / "tokens.bin", 600, 256); }
  ProgramResult shell(const std::string& script) const {
    return run_program("/bin/bash", {"-c", script}, "", path());
  }
};

const std::string train = bin +
                          "/train_gpt2 --model gpt2/ --data text.txt --batch-size 2 --threads 1 "
                          "--device cpu --val-steps 1 "
                          "--sample-tokens 0 ";

/// Parses a file of options as train_gpt2 does.
std::string refusal_of(const std::string& file) {
  TrainConfig options;
  CommandLine line("train_gpt2", "");
  declare_config(line, options);
  const std::vector<const char*> argv{"train_gpt2", "--config", file.c_str()};
  return error_message([&] { line.parse(static_cast<int>(argv.size()), argv.data()); });
}

}  // namespace

TEST_CASE("programs whose streams are closed write into no file of theirs", "[row17]") {
  const Folder in;
  const std::vector<std::pair<std::string, std::string>> rows{
      {train + "--steps 5 --output run", "run/log.jsonl"},
      {bin + "/train_mlp --steps 5 --threads 1 --output mlp", "mlp/log.jsonl"},
      {bin + "/plan --threads 1 --save-probe probe.json", "probe.json"},
      {bin + "/convert --input gpt2 --output half --dtype bf16", "half/config.json"}};
  for (const char* closed : {" >&-", " <&- >&- 2>&-"})
    for (const auto& [command, file] : rows) {
      fs::remove_all(in.path() / file.substr(0, file.find('/')));
      CAPTURE(command, closed);
      CHECK(in.shell(command + closed).exit_code == 0);
      std::istringstream lines(read_file(in.path() / file));
      std::size_t count = 0;
      if (file.ends_with(".json")) {
        CHECK(nlohmann::json::accept(lines.str()));
        continue;
      }
      for (std::string line; std::getline(lines, line); ++count)
        CHECK(nlohmann::json::accept(line));
      CHECK(count >= 5);
    }
  const std::string encode = bin + "/prepare_data --input text.txt --encode-only ";
  CHECK(in.shell(encode + "open.bin").exit_code == 0);
  CHECK(in.shell(encode + "closed.bin <&- >&- 2>&-").exit_code == 0);
  CHECK(read_file(in.path() / "open.bin") == read_file(in.path() / "closed.bin"));
}

TEST_CASE("a limit on the size of files is an error with the path", "[row18]") {
  const Folder in;
  const ProgramResult run = in.shell("ulimit -f 20; exec " + train + "--steps 3 --output run");
  INFO(run.out << run.err);
  CHECK(run.signal == 0);
  CHECK(run.exit_code == 1);
  CHECK_THAT(run.err,
             StartsWith("train_gpt2: error: the checkpoint was not saved: cannot write run/"));
  CHECK_THAT(run.err, EndsWith(": File too large\n"));
  const ProgramResult made =
      in.shell("ulimit -f 20; exec " + bin + "/convert --input gpt2 --output b");
  CHECK(made.exit_code == 1);
  CHECK_THAT(made.err,
             StartsWith("convert: error: cannot write b") && EndsWith(": File too large\n"));
}

TEST_CASE("more shards than a shell lets a program open are opened", "[row18]") {
  const TempDir folder;
  std::vector<fs::path> shards;
  for (int i = 0; i < 600; ++i) {
    shards.push_back(folder.path() / (std::to_string(i) + ".bin"));
    write_tokens(shards.back(), 3, 64);
  }
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE((before.rlim_max == RLIM_INFINITY || before.rlim_max > 700));
  const rlimit few{.rlim_cur = 550, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::int64_t size = 0;
  const std::string error = error_message([&] { size = open_token_files(shards, 64)->size(); });
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(error == "(no error)");
  CHECK(size == 1800);
}

TEST_CASE("memory that is gone ends a program with one sentence", "[row18]") {
#ifdef __SANITIZE_ADDRESS__
  SUCCEED("the sanitizer has a handler of its own");
#else
  const Folder in;
  RunningProgram run("/bin/bash", {"-c", "exec " + train + "--steps 100000 --output run"}, "",
                     in.path());
  REQUIRE(eventually([&] { return fs::exists(in.path() / "run/log.jsonl"); }));
  run.send(SIGBUS);
  const ProgramResult result = run.finish();
  CHECK(result.signal == 0);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, StartsWith("error: memory is gone") && Contains("/dev/shm"));
  CHECK(count_lines(result.err) == 1);
#endif
}

TEST_CASE("a processor that lacks instructions is refused by their names", "[row18]") {
  char text[400];
  const auto refused = [&](std::vector<InstructionSet> sets) -> std::string {
    return refuse_processor(sets.data(), sets.size(), text, sizeof text) ? text : "";
  };
  CHECK(refused({}) == "");
  CHECK(refused({{"avx", true}, {"avx2", true}}) == "");
  CHECK(refused({{"avx", true}, {"avx512f", false}, {"fma", true}, {"gfni", false}}) ==
        ": error: this program was built for processors with avx512f, gfni, which this one lacks; "
        "build it on this machine, or for older ones with -DSLUICE_MARCH=x86-64-v2\n");
  const std::string many = refused(std::vector<InstructionSet>(30, {"avx512vpopcntdq", false}));
  CHECK_THAT(many, Contains("avx512vpopcntdq and more, which"));
  CHECK(count_lines(many) == 1);
#ifdef SLUICE_PROCESSOR_REFUSED
  // No processor has both; the program's main and its initialisers would print.
  for (const Arguments& flags : {Arguments{}, Arguments{"--version"}}) {
    const ProgramResult result = run_program("processor_refused", flags);
    CHECK(result.exit_code == 1);
    CHECK(result.out == "");
    CHECK_THAT(result.err, StartsWith("processor_refused: error: this program was built for "
                                      "processors with ") &&
                               Contains("which this one lacks"));
  }
#endif
}

TEST_CASE("a file of options is a regular file of a sensible size", "[row19]") {
  const Folder in;
  const auto path = [&](const char* name) { return (in.path() / name).string(); };
  CHECK_THAT(refusal_of("/dev/zero"), Contains("/dev/zero is not a regular file"));
  REQUIRE(::mkfifo(path("pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal_of(path("pipe")), Contains("pipe is not a regular file"));
  CHECK_THAT(refusal_of(path("gpt2")), Contains("gpt2 is not a regular file"));
  CHECK_THAT(refusal_of(path("none")), Contains("cannot open") && Contains("No such file"));
  write_file(in.path() / "nul", std::string("steps=3\n\0", 9));
  CHECK_THAT(refusal_of(path("nul")), Contains("nul:2: this is not TOML"));
  write_file(in.path() / "long", std::string((1 << 20) + 1, '\n'));
  CHECK_THAT(refusal_of(path("long")),
             Contains("has 1048577 bytes, more than the limit of 1048576"));
  std::string deep = "[a";
  while (deep.size() < 1000000)
    deep += ".a";
  write_file(in.path() / "deep", deep + "]\nsteps=3\n");
  CHECK_THAT(refusal_of(path("deep")), Contains("deep:1: no option has a dot in its name"));
  write_file(in.path() / "good", "# words\nsteps=3\n");
  CHECK(refusal_of(path("good")) == "(no error)");
}

TEST_CASE("every text of an option is read back as it was, or is in no file", "[row19]") {
  const TempDir in;
  const auto written = [&](const std::string& prompt) {
    TrainConfig options;
    options.evaluation.prompt = prompt;
    CommandLine line("train_gpt2", "");
    declare_config(line, options);
    return line.resolved();
  };
  const auto read_back = [&](const std::string& text) {
    write_file(in.path() / "config.toml", text);
    TrainConfig options;
    CommandLine line("train_gpt2", "");
    declare_config(line, options);
    const std::string file = (in.path() / "config.toml").string();
    const std::vector<const char*> argv{"train_gpt2", "--config", file.c_str()};
    line.parse(static_cast<int>(argv.size()), argv.data());
    CHECK(line.resolved() == text);  // nothing else has changed, steps among it
    return options.evaluation.prompt;
  };
  std::vector<std::string> texts{
      "a b",  "a, b", "[a, b]", "[a]",  "a\\", "a b\\", "\\",   "'a'",    "\"a\"", "it's", " a ",
      "\ta",  "0x10", "1e3",    "true", "a=b", ";a",    "[a",   "a]",     "%%",    "{}",   "\\\"",
      "é 中", "--lr", "''",     "\"",   "'",   ", a",   "a b'", "a\"b c", ",",     " ",    "\x7F"};
  std::mt19937 random(7);
  const std::string alphabet = "ab ,;'\"\\[]=#.{}%\t0-\n\r";
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (std::size_t n = 1 + random() % 8; n > 0; --n)
      text += alphabet[random() % alphabet.size()];
    texts.push_back(text);
  }
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(read_back(written(text)) == text);
  }
  // Bytes that are no UTF-8 are no TOML. A comment is no option: the default is read.
  std::string lines = written("a\nsteps=777\xFF");
  const auto comment = lines.find("# give as a flag");
  REQUIRE(comment != std::string::npos);
  lines.erase(comment, lines.find('\n', comment) + 1 - comment);
  CHECK(read_back(lines).empty());
}

TEST_CASE("a CDPATH leads no script astray", "[row19]") {
  const TempDir in;
  fs::create_directories(in.path() / "decoy/scripts");
  const std::string source = SLUICE_SOURCE_DIR;
  const ProgramResult run = run_program(
      "/bin/bash",
      {"-c", "export CDPATH=.:" + (in.path() / "decoy").string() +
                 "; bash scripts/launch --dry-run --bin '" + bin +
                 "' train_gpt2; bash scripts/launch --dry-run none; bash scripts/quickstart none"},
      "", source);
  CHECK_THAT(run.out, StartsWith("mpirun "));
  CHECK_THAT(run.err, Contains("there is no program " + source + "/build/default/bin/none:"));
  CHECK(run.out.find(source + "\n") == std::string::npos);
  // All of them, those too that nobody can run here.
  const ProgramResult bare = run_program(
      "/bin/bash",
      {"-c", "grep -nE '(^|[^=]|[^H]=) *(\\$\\()?cd \"' scripts/* .ci/run | grep -v CDPATH="}, "",
      source);
  CHECK(bare.out == "");
}

TEST_CASE("a machine without /proc trains, tells what comes next and generates", "[row19]") {
  const Folder in;
  if (in.shell("unshare -m mount -t tmpfs none /proc").exit_code != 0) {
    skip("no right to mount");
    return;
  }
  const auto without = [&](const std::string& command) {
    return in.shell("unshare -m bash -c 'mount -t tmpfs none /proc && " + command + "'");
  };
  const ProgramResult run = without(train + "--steps 3 --output run");
  INFO(run.err);
  CHECK(run.err == "");
  CHECK(run.exit_code == 0);
  CHECK_THAT(run.out, Contains("/generate --model run/model --prompt"));
  const ProgramResult shipped =
      without(bin + "/train_gpt2 --steps 0 --save never --output none --threads 1");
  INFO(shipped.err);
  CHECK(shipped.exit_code == 0);  // it finds the text beside itself
  CHECK(without(bin + "/generate --model run/model --prompt hi --max-tokens 3").exit_code == 0);
}

}  // namespace sluice::test::limits_test
