#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "bench/kernels/buffers.h"

namespace sluice::bench {

/// Milliseconds per launch over the repetitions.
struct Timing {
  double median = 0;
  double p20 = 0;
  double p80 = 0;
  int repetitions = 0;
};

struct TimerOptions {
  double warmup_ms = 25;
  double measured_ms = 100;
  bool cold = false;
};

/// Returns the value below which the given fraction of `values` lies.
double quantile(std::vector<double> values, double fraction);

/// True for a real GPU, false for an emulated one.
bool is_gpu(const DevicePtr& device);

/// Times launches with the device's events on a GPU and with the clock on the CPU. Cold: every
/// repetition finds its operands in memory, not in a cache, because the previous ones used other
/// copies. Nothing is flushed: dirty lines of a flush would be written back on the kernel's time,
/// whereas in training those lines belong to the kernels before it.
class Timer {
 public:
  Timer(DevicePtr device, const TimerOptions& options);

  /// Throws Error if the operands do not fit.
  Timing time(const Problem& problem) const;
  Timing time(const std::function<void(int copy)>& launch, int copies) const;

  /// Number of copies of the operands in a cold measurement.
  int copies_of(std::size_t bytes) const;

 private:
  /// Appends the milliseconds of each of `count` launches to `times`.
  void run_batch(const std::function<void(int copy)>& launch, int copies, int count,
                 std::vector<double>& times) const;

  DevicePtr device_;
  TimerOptions options_;
  std::vector<Event> starts_, ends_;
  std::unique_ptr<Block> head_start_;  ///< memory that the GPU fills while launches queue up
};

}  // namespace sluice::bench
