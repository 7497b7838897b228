#pragma once

#include <map>

#include "bench/kernels/timer.h"

namespace sluice::bench {

/// What this machine can do at most, measured on random numbers when it is first asked for. A
/// kernel's speed is stated as a part of it.
class Calibration {
 public:
  Calibration(DevicePtr device, const TimerOptions& options);

  /// Bytes read and written by a plain copy, each counted, a second.
  double copy_rate();
  /// Floating-point operations a second of a large matrix product with operands of `dtype`.
  double gemm_rate(DType dtype);

  /// Those that were asked for.
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
