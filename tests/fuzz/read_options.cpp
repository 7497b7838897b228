#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "apps/cli/command_line.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "tests/fuzz/harness.h"

namespace sluice::fuzz {
namespace {

constexpr Choices<DType, 2> types{{{"fp32", DType::f32}, {"bf16", DType::bf16}}};

/// A program with an option of each kind.
struct Program {
  std::string text, choice = "auto";
  std::optional<std::size_t> size;
  std::optional<std::int64_t> counted = 4;
  std::optional<std::string> named;
  std::optional<DType> chosen;
  std::vector<std::string> texts;
  bool flag = false, told = true;
  std::int64_t whole = 7;
  std::optional<std::int64_t> maybe_whole;
  std::uint64_t seed = 1;
  double number = 0.5;
  std::optional<double> maybe_number;
  CommandLine line{"program", ""};

  Program() {
    line.add("--text", text, "");
    line.add("--texts", texts, "");
    line.add("--flag", flag, "");
    line.add("--told", told, "");
    line.add("--whole", whole, "", 1, 1000);
    line.add("--maybe-whole", maybe_whole, "");
    line.add("--seed", seed, "");
    line.add("--number", number, "", 0, 1);
    line.add("--maybe-number", maybe_number, "", 0, 1e300);
    line.add_size("--size", size, "");
    line.add_choice("--choice", choice, "", {"auto", "bytes", "chars"});
    line.add_or_auto("--counted", counted, "", 1);
    line.add_or_auto("--named", named, "");
    line.add_choice("--chosen", chosen, "", types);
    line.allow_config_file();
  }

  void read(const std::filesystem::path& file) {
    const std::string argument = "--config=" + file.string();
    const std::array<const char*, 2> arguments{"program", argument.c_str()};
    try {
      require(line.parse(static_cast<int>(arguments.size()), arguments.data()),
              "a file asks for --help");
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::usage, "a file that is not the user's fault");
      throw;
    }
  }
};

}  // namespace

void read_options_file(Bytes input) {
  Program program;
  program.read(put("options.toml", input));
  require(program.whole >= 1 && program.whole <= 1000, "a whole number out of range");
  require(program.maybe_whole.value_or(0) >= 0, "a whole number below zero");
  require(program.counted.value_or(1) >= 1, "a count below one");
  require(program.size.value_or(1 << 20) >= 1 << 20, "a size below the least");
  require(program.number >= 0 && program.number <= 1, "a number out of range");
  require(program.maybe_number.value_or(0) >= 0 && program.maybe_number.value_or(0) <= 1e300,
          "a number that is not finite, or below zero");
  require(program.choice == "auto" || program.choice == "bytes" || program.choice == "chars",
          "a choice that there is not");

  const std::string resolved = program.line.resolved();
  // An option that could not be read back is written as a comment.
  if (resolved.find("# give as a flag") != resolved.npos) return;
  Program again;
  again.read(put("again.toml", resolved));
  require(again.line.values() == program.line.values(), "options differ once written");
  require(again.line.resolved() == resolved, "a file of options differs once read");
}

}  // namespace sluice::fuzz
