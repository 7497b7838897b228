#include "apps/train_gpt2/core_use.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <numeric>
#include <sstream>

namespace sluice {

CoreUse::CoreUse() = default;

CoreUse::Sample CoreUse::sample() {
  Sample now;
  std::ifstream file("/proc/stat");  // if it is missing, nothing is known or reported
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.starts_with("cpu") || name.size() == 3) continue;
    int core = -1;
    std::from_chars(name.data() + 3, name.data() + name.size(), core);
    if (core < 0 || core >= CPU_SETSIZE) continue;
    double ticks[8] = {};  // user, nice, system, idle, waiting for disks, interrupts (2), steal
    for (double& value : ticks)
      words >> value;
    const double all = std::accumulate(std::begin(ticks), std::end(ticks), 0.0);
    const auto at = static_cast<std::size_t>(core);
    now.all.resize(std::max(now.all.size(), at + 1));
    now.busy.resize(now.all.size());
    now.all[at] = all;
    now.busy[at] = all - ticks[3] - ticks[4];
  }
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  now.own =
      (seconds(used.ru_utime) + seconds(used.ru_stime)) * static_cast<double>(sysconf(_SC_CLK_TCK));
  return now;
}

std::string CoreUse::shortage(Communicator& ranks, int threads, int local_ranks) const {
  const Sample now = sample();
  const auto own = ranks.gather_values(now.own - start_.own, "own use of cores");
  cpu_set_t mine, any;
  CPU_ZERO(&mine);
  CPU_ZERO(&any);
  sched_getaffinity(0, sizeof mine, &mine);
  for (const cpu_set_t& cores : ranks.gather_values(mine, "cores"))
    CPU_OR(&any, &any, &cores);
  // With ranks on other computers `own` would count them too, so nothing can be said.
  if (static_cast<int>(own.size()) != local_ranks) return {};
  double all = 0, busy = 0;
  for (std::size_t core = 0; core < std::min(now.all.size(), start_.all.size()); ++core) {
    if (CPU_ISSET(core, &any) == 0) continue;
    all += now.all[core] - start_.all[core];
    busy += now.busy[core] - start_.busy[core];
  }
  const int cores = CPU_COUNT(&any);
  if (all <= 0) return {};
  const double others =
      std::max(0.0, (busy - std::accumulate(own.begin(), own.end(), 0.0)) / all * cores);
  const double wanted = std::min(cores, threads * local_ranks);
  if (others < 0.5 || wanted <= cores - others + 0.25) return {};
  return fmt::format(
      "other programs use {:.1f} of the {} cores, and this one has {} threads: its steps take "
      "longer "
      "than on a free machine",
      others, cores, threads * local_ranks);
}

}  // namespace sluice
