#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "bench/kernels/buffers.h"

namespace sluice::bench {

/// Milliseconds of one launch over the repetitions.
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

/// The value below which `fraction` of them lie.
double quantile(std::vector<double> values, double fraction);

/// Whether the device is a GPU and not an emulated one.
bool is_gpu(const DevicePtr& device);

/// Times launches by the device's own events on a GPU and by the clock on the CPU. Cold: every
/// repetition finds its operands in memory, because those before it used other copies of them.
/// Nothing is flushed: lines that a flush has left dirty would be written back on the kernel's
/// time, where in training it is its own predecessors' lines that are.
class Timer {
 public:
  Timer(DevicePtr device, const TimerOptions& options);

  /// Throws Error where the operands do not fit.
  Timing time(const Problem& problem) const;
  Timing time(const std::function<void(int copy)>& launch, int copies) const;

  /// How often the operands are there in a cold measurement.
  int copies_of(std::size_t bytes) const;

 private:
  /// Milliseconds of each of `count` launches.
  void run_batch(const std::function<void(int copy)>& launch, int copies, int count,
                 std::vector<double>& times) const;

  DevicePtr device_;
  TimerOptions options_;
  std::vector<Event> starts_, ends_;
  std::unique_ptr<Block> head_start_;  ///< what the GPU fills while launches pile up
};

}  // namespace sluice::bench
