#include <algorithm>
#include <cstdlib>

#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/help_flags.h"
#include "tests/support/skip.h"

// What a program prints has been written when it ends with 0.

namespace sluice::test::results_test {
namespace {

struct Desk : TempDir {
  Desk() {
    DecoderConfig config = small_config();
    config.vocab_size = 256;
    config.n_positions = 64;
    write_model(path() / "model", config);
    ByteTokenizer().save(path() / "model");
    write_file(path() / "text.txt", std::string(3000, 'a') + "\n");
    write_file(path() / "prompts.txt", "one\ntwo\n");
    write_tokens(path() / "t.bin", 300, 64);
  }

  /// Runs "PROGRAM FLAGS REST" by a shell.
  ProgramResult shell(const std::string& command, const std::string& rest) const {
    return run_program("/bin/sh", {"-c", std::string(SLUICE_BIN_DIR) + "/" + command + " " + rest},
                       {}, path());
  }
};

/// A command of each program that prints results; --output names are new each time.
std::vector<std::string> commands() {
  const std::string shape = "--n-layer 1 --n-head 1 --n-embd 8 --context 16 --threads 1 ";
  const std::string run = "train_gpt2 " + shape + "--data text.txt --steps 1 --sample-tokens 0 ";
  return {"evaluate --model model --data text.txt",
          "evaluate --model model --data text.txt --json",
          "generate --model model --prompt To --max-tokens 3 --threads 1",
          "generate --model model --prompt To --max-tokens 3 --num 2 --threads 1",
          "generate --model model --prompts prompts.txt --max-tokens 3 --threads 1",
          "generate --model model --tokens 1 --max-tokens 3 --threads 1",
          "plan " + shape + "--data text.txt",
          "plan " + shape + "--data text.txt --json",
          "plan --model gpt2 --device-profile a100 --gpus 2",
          "probe --model model --tokens t.bin",
          "convert --input model --output copy",
          "prepare_data --input text.txt --output data",
          run + "--output run",
          run + "--output quiet --quiet",
          "train_mlp --steps 1 --threads 1 --output mlp"};
}

constexpr const char* lost = "the standard output could not be written: No space left on device";

}  // namespace

TEST_CASE("output that cannot be written makes the exit code 1, in every program", "[results]") {
  const Desk desk;
  std::vector<std::string> all = commands();
  for (const std::string& program : all_programs())
    for (const char* const asked : {" --help", " --version"})
      all.push_back(program + asked);
  std::vector<std::string> programs;
  for (const std::string& command : all) {
    INFO(command);
    const std::string program = command.substr(0, command.find(' '));
    programs.push_back(program);
    const ProgramResult full = desk.shell(command, "> /dev/full");
    CHECK(full.exit_code == 1);
    CHECK(full.err == program + ": error: " + lost + "\n");
    // All else was done.
    if (command.ends_with("--output run")) CHECK(fs::exists(desk.path() / "run/model/config.json"));
  }
  const ProgramResult closed = desk.shell("evaluate --model model --data text.txt", ">&-");
  CHECK(closed.exit_code == 0);  // as to /dev/null
  CHECK(closed.err == "");
}

TEST_CASE("a reader that has gone away is no error", "[results]") {
  const Desk desk;
  for (const std::string& command : commands()) {
    INFO(command);
    for (const char* const mode : {"", "trap '' PIPE; "}) {
      INFO(mode);
      fs::remove_all(desk.path() / "mlp");
      const std::string line = std::string(mode) + "exec 3>&2; { " + SLUICE_BIN_DIR + "/" +
                               command + "; echo $? >&3; } | :";
      // The reader has ended before the program prints.
      const ProgramResult result = run_program("/bin/bash", {"-c", line + "; :"}, {}, desk.path());
      INFO(result.err);
      CHECK((result.err == "0\n" || result.err == "141\n"));
      if (*mode != '\0') CHECK(result.err == "0\n");
    }
  }
}

TEST_CASE("scripts in Python say it too", "[results]") {
  if (std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' > /dev/null 2>&1"))
    return skip("no python3");
  const TempDir dir;
  std::vector<std::string> scripts;
  for (const auto& entry : fs::directory_iterator(SLUICE_SOURCE_DIR "/scripts")) {
    const std::string text = entry.is_regular_file() ? read_file(entry.path()) : "";
    if (text.starts_with("#!/usr/bin/env python3") && text.find("parse_args") != text.npos &&
        text.find("import matplotlib\n\n") == text.npos)
      scripts.push_back(entry.path());
  }
  REQUIRE(scripts.size() >= 8);
  for (const std::string& script : scripts) {
    INFO(script);
    const ProgramResult full = run_program(
        "/bin/sh", {"-c", "env -u PYTHONUNBUFFERED python3 -B " + script + " --help > /dev/full"},
        {}, dir.path());
    CHECK(full.exit_code == 1);
    CHECK(count_lines(full.err) == 1);
    CHECK_THAT(full.err, Contains(lost));
  }
}

}  // namespace sluice::test::results_test
