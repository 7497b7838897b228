#include <array>
#include <cmath>
#include <optional>

#include "apps/cli/command_line.h"
#include "apps/cli/sizes.h"
#include "kernels/base/error.h"
#include "tests/fuzz/harness.h"

namespace sluice::fuzz {
namespace {

/// Returns true if a program would accept this argument.
bool taken(CommandLine& line, const std::string& argument) {
  const std::array<const char*, 2> arguments{"program", argument.c_str()};
  try {
    return line.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::usage, "an argument that is not the user's fault");
    require_showable(error.what());
    return false;
  }
}

}  // namespace

void read_number(Bytes input) {
  // An argument of a program ends at NUL.
  const std::string text(input.substr(0, input.find('\0')));
  std::int64_t whole = 7;
  CommandLine whole_line("program", "");
  whole_line.add("--whole", whole, "", 1, 1000);
  if (taken(whole_line, "--whole=" + text)) require(whole >= 1 && whole <= 1000, "out of range");
  double number = 0.5;
  CommandLine number_line("program", "");
  number_line.add("--number", number, "", 0, 1);
  if (taken(number_line, "--number=" + text)) require(number >= 0 && number <= 1, "out of range");

  const std::size_t bytes = parse_bytes("--size", text);
  require(bytes >= 1 << 20 && bytes <= std::size_t{1} << 50, "a size out of range");
  require(parse_bytes("--size", spell_bytes(bytes)) == bytes, "a size differs once spelt");
}

}  // namespace sluice::fuzz
