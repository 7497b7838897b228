#include "apps/train_gpt2/core_use.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <numeric>
#include <sstream>

#include "kernels/cpu/parallel_for.h"

namespace sluice {

CoreUse::CoreUse() = default;

CoreUse::Sample CoreUse::sample() {
  Sample now;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  std::ifstream file("/proc/stat");  // if it is missing, nothing is known or reported
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.starts_with("cpu") || name.size() == 3) continue;
    int core = -1;
    std::from_chars(name.data() + 3, name.data() + name.size(), core);
    if (core < 0 || core >= CPU_SETSIZE || CPU_ISSET(static_cast<unsigned>(core), &cores) == 0)
      continue;
    double ticks[8] = {};  // user, nice, system, idle, waiting for disks, interrupts (2), steal
    for (double& value : ticks)
      words >> value;
    const double all = std::accumulate(std::begin(ticks), std::end(ticks), 0.0);
    now.all += all;
    now.busy += all - ticks[3] - ticks[4];
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
  const double all = now.all - start_.all;
  const int cores = cpu::available_cores();
  // With ranks on other computers `own` would count them too, so nothing can be said.
  if (all <= 0 || static_cast<int>(own.size()) != local_ranks) return {};
  const double others = std::max(
      0.0, (now.busy - start_.busy - std::accumulate(own.begin(), own.end(), 0.0)) / all * cores);
  const double wanted = std::min(cores, threads * local_ranks);
  if (others < 0.5 || wanted <= cores - others + 0.25) return {};
  return fmt::format(
      "other programs use {:.1f} of the {} cores, and this one has {} threads: its steps take "
      "longer "
      "than on a free machine",
      others, cores, threads * local_ranks);
}

}  // namespace sluice
