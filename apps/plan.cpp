#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/cli/command_line.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/config/train_config.h"
#include "apps/flags/no_effect.h"
#include "apps/output/output_file.h"
#include "apps/report/pipeline_report.h"
#include "apps/report/plan_report.h"
#include "kernels/base/error.h"
#include "kernels/cpu/parallel_for.h"

namespace {

using namespace sluice;

constexpr std::int64_t max_gpus = 1 << 16;

void measure_and_save(const TrainConfig& options, const std::string& file) {
  cpu::set_threads(static_cast<int>(options.machine.threads));
  const DeviceKind kind = choose_device(options.machine.device);
  const DeviceProfile profile =
      measure_profile(kind, resolve_precision(options.machine.precision, kind));
  save_profile(file, profile);
  say(fmt::format("{} written: {}\n", file, profile.name));
}

/// Refuses flags of planning that would change nothing.
void require_planning(const TrainConfig& o, const std::string& save_probe) {
  const std::int64_t ranks = std::max<std::int64_t>(o.planning.gpus, o.parallel.mesh().size());
  const bool one = ranks == 1 && !o.planning.scaling;
  refuse_without_effect(
      o.given,
      {{o.planning.gpus == 0, "--top", "is for --gpus, which compares ways to train"},
       {!o.planning.probe.empty(), "--device-profile", "is another machine than that of --probe"},
       {one, "--link --ranks-per-node --network",
        "is for several ranks: --dp, --pp, --tp, --gpus or --scaling"},
       {ranks <= o.planning.ranks_per_node && !o.planning.scaling, "--network",
        fmt::format("is between nodes, and {} ranks are on one (--ranks-per-node)", ranks)}});
  if (save_probe.empty()) return;
  for (const std::string& flag : o.given.changed)
    if (flag != "--save-probe" && flag != "--device" && flag != "--precision" &&
        flag != "--threads")
      fail(fmt::format("{}: --save-probe measures this machine and plans nothing; leave it out",
                       flag),
           ErrorKind::usage);
}

/// Keeps freed memory in the process. A plan makes hundreds of short trainings, and to give back
/// and take what each of them needs takes longer than to count it.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("plan", [&] {
    keep_freed_memory();
    TrainConfig options;
    std::string save_probe;
    CommandLine line("plan",
                     "Says, before anything runs, how a training would use memory and how long a "
                     "step would take, here or on another machine. It takes train_gpt2's options.");
    declare_config(line, options);
    line.group("Planning");
    line.role(CommandLine::Role::planning);
    line.add("--device-profile", options.planning.device_profile,
             fmt::format("Plan for a GPU that is not at hand: {}; as in \"NVIDIA A100 80GB\" too",
                         fmt::join(known_profiles(), ", ")));
    line.add("--probe", options.planning.probe,
             "Plan for the machine on which --save-probe wrote this file");
    add_output_file(line, "--save-probe", save_probe, "a file of --save-probe", is_profile,
                    "Measure this machine, write the file and stop");
    declare_schedule_files(line, options);
    line.add("--scaling", options.planning.scaling,
             "Predict steps of 1, 2, 4, ... 4096 ranks (--dp, --zero), and what they send");
    line.add("--gpus", options.planning.gpus,
             "Compare ways to train on so many GPUs: all --dp x --pp x --tp, the fastest first; "
             "flags that are given stay",
             1, max_gpus);
    line.add("--top", options.planning.top, "Ways that --gpus prints", 1, 1 << 16);
    line.add("--link", options.planning.link,
             "What a rank sends a second within a node, and the latency of a message, such as "
             "25GB,2.5us; default: the device's");
    line.add("--ranks-per-node", options.planning.ranks_per_node,
             "Ranks that share a node's network", 1, 1 << 16);
    line.add("--network", options.planning.network,
             "The same between nodes, all ranks of a node together; default 12.5GB,10us");
    line.add("--json", options.planning.json, "Print an object instead of a table");
    const auto defaults = line.values();
    if (!line.parse(argc, argv)) return 0;
    options.given = given_flags(line, defaults);
    require_planning(options, save_probe);
    std::vector<CommandLine::Role> repeated{CommandLine::Role::training};
    if (options.planning.gpus == 0) repeated.push_back(CommandLine::Role::ranks);
    options.asked = line.repeated(repeated);
    if (!save_probe.empty())
      measure_and_save(options, save_probe);
    else if (options.planning.gpus > 0)
      print_cluster_plan(options, {line.given("--pp"), line.given("--tp"), line.given("--zero")});
    else
      print_plan(options);
    return 0;
  });
}
