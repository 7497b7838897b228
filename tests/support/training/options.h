#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "apps/config/train_config.h"

namespace sluice::test {

/// Parses options as train_gpt2 does; if a flag is given twice the last one counts.
inline TrainConfig parsed(const std::string& flags) {
  std::map<std::string, std::string> values;
  std::istringstream text(flags);
  for (std::string flag, value; text >> flag >> value;)
    values[flag] = value;
  std::vector<const char*> arguments{"test"};
  for (const auto& [flag, value] : values)
    arguments.insert(arguments.end(), {flag.c_str(), value.c_str()});
  TrainConfig options;
  CommandLine line("test", "");
  declare_config(line, options);
  // Catch2 cannot be used here, since the ranks of a test are threads.
  check(line.parse(static_cast<int>(arguments.size()), arguments.data()), "no --help");
  return options;
}

}  // namespace sluice::test
