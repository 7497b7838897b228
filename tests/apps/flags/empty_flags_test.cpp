#include <algorithm>
#include <limits>

#include "apps/cli/command_line.h"
#include "kernels/base/error.h"
#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/help_flags.h"

// --flag= is an empty value, which all refuse but flags for a text; it never takes the next word.
// So it is for --flag "" and in a --config file.

namespace sluice::test::empty_flags_test {
namespace {

/// Flags whose value may be an empty text.
bool may_be_empty(const std::string& program, const std::string& flag) {
  static const std::vector<std::string> texts{"generate --prompt",
                                              "generate --stop",
                                              "train_gpt2 --prompt",
                                              "plan --prompt",
                                              "bench_collectives --collective",
                                              "bench_kernels --op",
                                              "bench_kernels --variant",
                                              "bench_kernels --shape",
                                              "bench_kernels --dtype"};
  return std::ranges::find(texts, program + " " + flag) != texts.end();
}

/// A program's options, of each kind one.
struct Table {
  std::string text = "usual", path, choice = "a", output;
  std::vector<std::string> list;
  bool flag = false;
  std::int64_t number = 3;
  std::uint64_t seed = 4;
  std::optional<std::string> maybe;
  CommandLine line{"test", ""};

  explicit Table(std::vector<const char*> arguments) {
    line.add_text("--text", text, "A text");
    line.add("--path", path, "A path");
    line.add("--list", list, "A list");
    line.add("--flag", flag, "A flag");
    line.add("--number", number, "A number");
    line.add("--seed", seed, "A seed");
    line.add_or_auto("--maybe", maybe, "A word");
    line.add_choice("--choice", choice, "A choice", {"a", "b"});
    line.add_output("--output", output, "An output", [](const std::string&) {});
    line.allow_config_file();
    arguments.insert(arguments.begin(), "test");
    check(line.parse(static_cast<int>(arguments.size()), arguments.data()), "no --help");
  }
};

}  // namespace

TEST_CASE("an empty value is refused by every flag of every program but those for texts",
          "[flags]") {
  const TempDir dir;
  for (const std::string& program : all_programs())
    for (const HelpFlag& flag : flags_of(program)) {
      if (may_be_empty(program, flag.name)) continue;
      for (const Arguments& given : {Arguments{flag.name + "="}, Arguments{flag.name, ""}}) {
        if (flag.type.empty() && given.size() > 1) continue;
        INFO(program << " " << given[0]);
        Arguments arguments = given;
        arguments.push_back("--no-such-flag");  // it is not the value
        const ProgramResult result = run_program(program, arguments, "", dir.path());
        CHECK(result.exit_code == 2);
        CHECK(count_lines(result.err) == 1);
        CHECK(result.err.size() <= 300 + program.size());
        CHECK_THAT(result.err, StartsWith(program + ": error: " + flag.name + ": "));
        CHECK_THAT(result.err, Contains(flag.type.empty() && flag.name != "--config"
                                            ? "'' is neither true nor false"
                                            : "the value is empty"));
      }
    }
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("an empty value never takes the next word", "[flags]") {
  const TempDir dir;
  const Arguments small{"--n-layer", "1",  "--n-head", "1", "--n-embd",        "8",
                        "--context", "16", "--steps",  "1", "--sample-tokens", "0"};
  Arguments given = small;
  given.insert(given.end(), {"--output=", "--save", "never"});
  const ProgramResult result = run_program("train_gpt2", given, "", dir.path());
  CHECK(result.exit_code == 2);
  CHECK(result.err ==
        "train_gpt2: error: --output: the value is empty; --help says of it: Folder of the run; "
        "default runs/<time>\n");
  CHECK(fs::is_empty(dir.path()));

  DecoderConfig config = small_config();
  config.vocab_size = 256;
  write_model(dir.path() / "model", config);
  ByteTokenizer().save(dir.path() / "model");
  const auto text = [&](const Arguments& prompt) {
    Arguments all{"--model", (dir.path() / "model").string(), "--temperature", "0"};
    all.insert(all.end(), prompt.begin(), prompt.end());
    return run_well("generate", all);
  };
  const std::string empty = text({"--prompt", "", "--max-tokens", "3"});
  CHECK(text({"--prompt=", "--max-tokens", "3"}) == empty);
  CHECK(text({"--max-tokens", "3", "--prompt="}) == empty);
  CHECK(text({"--prompt", "--max", "--max-tokens", "3"}) != empty);
}

TEST_CASE("an empty text is a value, and nothing else is", "[flags]") {
  const Table usual({});
  CHECK(usual.text == "usual");
  const Table given({"--text=", "--path=p", "--list", "x", "y", "--number=7"});
  CHECK(given.text.empty());
  CHECK(given.path == "p");
  CHECK(given.list == std::vector<std::string>{"x", "y"});
  CHECK(given.number == 7);
  CHECK(given.line.repeated({CommandLine::Role::training}) ==
        " --text '' --path p --list x --list y --number 7");
  for (const char* const flag :
       {"--path", "--list", "--number", "--seed", "--maybe", "--choice", "--output", "--config"}) {
    INFO(flag);
    const std::string joined = std::string(flag) + "=";
    for (const std::vector<const char*>& arguments :
         {std::vector<const char*>{joined.c_str(), "--flag"}, {flag, ""}, {"--flag", flag, ""}})
      CHECK_THAT(error_message([&] { Table{arguments}; }),
                 StartsWith(std::string(flag) + ": the value is empty"));
  }
  CHECK_THAT(error_message([] {
               Table({"--flag=", "x"});
             }),
             StartsWith("--flag: '' is neither true nor false"));
  CHECK_THAT(error_message([] {
               Table({"--nothing=", "x"});
             }),
             Contains("unknown flag '--nothing'"));
}

TEST_CASE("an empty text comes back from the file of options", "[flags]") {
  const TempDir dir;
  const std::string file = (dir.path() / "options.toml").string();
  write_file(file, Table({"--text=", "--number=7"}).line.resolved());
  const Table again({"--config", file.c_str()});
  CHECK(again.text.empty());
  CHECK(again.number == 7);
  write_file(file, "text=\"\"\n");
  CHECK(Table({"--config", file.c_str()}).text.empty());
  for (const char* const written : {"path=\"\"\n", "output=\"\"\n", "number=\"\"\n", "path=\n"}) {
    INFO(written);
    write_file(file, written);
    CHECK_THROWS_AS(Table({"--config", file.c_str()}), Error);
  }
}

TEST_CASE("a seed is any whole number of 64 bits", "[flags]") {
  const TempDir dir;
  const std::string file = (dir.path() / "options.toml").string();
  for (const char* const text :
       {"0", "9223372036854775807", "9223372036854775808", "18446744073709551615"}) {
    INFO(text);
    const Table given({"--seed", text});
    CHECK(std::to_string(given.seed) == text);
    write_file(file, given.line.resolved());
    CHECK(Table({"--config", file.c_str()}).seed == given.seed);
  }
  for (const char* const text : {"18446744073709551616", "-1", "1.5", "1e3", "+1", " 1", "0x10"}) {
    INFO(text);
    CHECK_THAT(
        error_message([&] {
          Table({"--seed", text});
        }),
        StartsWith("--seed: ") && Contains("is not a whole number from 0 to 18446744073709551615"));
  }
}

}  // namespace sluice::test::empty_flags_test
