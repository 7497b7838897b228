#pragma once

#include <string>

#include "parallel/comm/communicator.h"

namespace sluice {

/// Measures how busy other programs keep the cores that this process may use: the busy time in
/// /proc/stat, which includes time that a hypervisor gives to other machines, less the time of this
/// job's own ranks. Counts from its construction.
class CoreUse {
 public:
  CoreUse();

  /// Returns a sentence if the ranks of this computer want more cores, `threads` for each of
  /// `local_ranks`, than other programs leave; else "". All ranks of the job call it.
  std::string shortage(Communicator& ranks, int threads, int local_ranks) const;

 private:
  struct Sample {
    double busy = 0, all = 0;  ///< of the cores, in ticks
    double own = 0;            ///< of this process, in ticks
  };
  static Sample sample();

  Sample start_ = sample();
};

}  // namespace sluice
