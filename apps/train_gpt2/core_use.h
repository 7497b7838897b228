#pragma once

#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace sluice {

/// Measures, from its construction on, how busy other programs keep the cores that the ranks may
/// use: the busy time in /proc/stat (with time that a hypervisor gives to other machines), less
/// that of this job's own ranks.
class CoreUse {
 public:
  CoreUse();

  /// Returns a sentence if the ranks of this computer (`local_ranks` with `threads` threads each)
  /// want more cores than other programs leave free; else "". All ranks of the job call it.
  std::string shortage(Communicator& ranks, int threads, int local_ranks) const;

 private:
  struct Sample {
    std::vector<double> busy, all;  ///< of every core of the computer, in ticks
    double own = 0;                 ///< of this process, in ticks
  };
  static Sample sample();

  Sample start_ = sample();
};

}  // namespace sluice
