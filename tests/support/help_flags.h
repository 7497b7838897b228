#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// The option tables of all programs, as --help prints them.

namespace sluice::test {

struct HelpFlag {
  std::string name;  ///< "--output"
  std::string type;  ///< "TEXT", "OUTPUT"; empty for a flag without a value
  std::string help;

  bool writes() const { return type == "OUTPUT"; }
};

/// Returns every program that has been built, by its source: those of apps/ and the benchmarks.
inline std::vector<std::string> all_programs() {
  std::vector<std::string> names;
  for (const char* const folder : {"apps", "bench"})
    for (const auto& entry : fs::directory_iterator(fs::path(SLUICE_SOURCE_DIR) / folder))
      if (entry.path().extension() == ".cpp" &&
          fs::exists(fs::path(SLUICE_BIN_DIR) / entry.path().stem()))
        names.push_back(entry.path().stem());
  REQUIRE(names.size() >= 9);
  return names;
}

/// Returns the flags of a program, without --help and --version.
inline std::vector<HelpFlag> flags_of(const std::string& program) {
  std::istringstream lines(run_well(program, {"--help"}));
  std::vector<HelpFlag> flags;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  --")) continue;
    const std::size_t end = line.find("  ", 2);
    const std::string left = line.substr(2, end - 2);
    HelpFlag flag{.name = left.substr(0, left.find_first_of(" =")), .type = "", .help = ""};
    if (const auto space = left.find(' '); space != left.npos)
      flag.type = left.substr(space + 1, left.find_first_of(" =", space + 1) - space - 1);
    if (end == line.npos) std::getline(lines, line);  // a long flag has its help below it
    flag.help = line.substr(line.find_first_not_of(' ', end == line.npos ? 0 : end));
    if (flag.name != "--version") flags.push_back(flag);
  }
  return flags;
}

}  // namespace sluice::test
