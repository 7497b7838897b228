#pragma once

#include <string>

#include "parallel/communicator.h"

namespace sluice {

/// How busy others keep the cores that this process may use: what /proc/stat counts, the time that
/// a hypervisor gives to other machines included, less what this job's own ranks use. Counts from
/// when it was made.
class CoreUse {
 public:
  CoreUse();

  /// A sentence where the ranks of this computer want more cores, `threads` for each of
  /// `local_ranks`, than others leave; else empty. All ranks of the job call it.
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
