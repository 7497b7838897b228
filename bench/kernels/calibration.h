#pragma once

#include <map>

#include "bench/kernels/timer.h"

namespace sluice::bench {

/// The highest rates of this machine, measured on random numbers at first use. The speed of a
/// kernel is reported as a fraction of them.
class Calibration {
 public:
  Calibration(DevicePtr device, const TimerOptions& options);

  /// Bytes read plus bytes written per second by a plain copy.
  double copy_rate();
  /// Floating-point operations per second of a large matrix product with operands of `dtype`.
  double gemm_rate(DType dtype);

  /// Rates measured so far.
  const std::map<DType, double>& gemm_rates() const { return gemm_rates_; }
  std::string copy_shape() const;
  std::string gemm_shape(DType dtype) const;

 private:
  std::int64_t gemm_size(DType dtype) const;
  std::size_t copy_bytes() const;

  DevicePtr device_;
  Timer timer_;
  double copy_rate_ = 0;
  std::map<DType, double> gemm_rates_;
};

}  // namespace sluice::bench
