#include <cstdio>

#include "tests/fuzz/samples.h"
#include "tests/support/temp_dir.h"

// write_seeds DIRECTORY: the samples as files, DIRECTORY/HARNESS/SAMPLE, and
// DIRECTORY/HARNESS.list, which names them as libFuzzer's option -seed_inputs wants it.

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_seeds DIRECTORY\n");
    return 2;
  }
  for (const auto& parser : sluice::fuzz::parsers()) {
    const fs::path folder = fs::path(argv[1]) / parser.name;
    fs::remove_all(folder);
    fs::create_directories(folder);
    std::string list;
    for (const auto& sample : parser.samples()) {
      sluice::test::write_file(folder / sample.name, sample.bytes);
      list += (list.empty() ? "" : ",") + (folder / sample.name).string();
    }
    sluice::test::write_file(folder.string() + ".list", list);
  }
  return 0;
}
