#include <fmt/format.h>

#include <string>

#include "apps/cli/command_line.h"
#include "apps/cli/run_program.h"
#include "kernels/base/error.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/last_words.h"
#include "parallel/flight_recorder/rank_report.h"

int main(int argc, char** argv) {
  using namespace sluice;
  return run_program("post_mortem", [&] {
    std::string folder;
    bool all = false;
    CommandLine line(
        "post_mortem",
        "Says in one sentence why a job of several ranks did not go on, from the files "
        "that train_gpt2 --rank-files leaves.");
    line.add("folder", folder, "Folder with the ranks' files");
    line.require("folder");
    line.add("--all", all, "Print each rank's last operations too");
    if (!line.parse(argc, argv)) return 0;
    const auto records = read_records(folder);
    if (records.empty())
      fail(fmt::format("there are no ranks' files in {}", folder), ErrorKind::usage);
    fmt::print("{}", rank_report(records, last_words(folder), all));
    return 0;
  });
}
