#pragma once

#include "bench/kernels/case.h"
#include "engine/device_context.h"

namespace sluice::bench {

/// Deviation of a kernel's results from the CPU's in f64, on the problem itself or, if that is too
/// large, on one of fewer tokens.
struct Deviation {
  double error = 0;  ///< |result - reference| / |reference| in l2 norms, worst operand
  double worst = 0;  ///< worst element: error / (its value + operand's RMS)
  double bound = 0;  ///< upper limit of `error`
  std::int64_t tokens = 0;

  /// One wrong element among millions hardly changes the norm, so `worst` has a bound of its own.
  bool within() const { return error <= bound && worst <= 16 * bound; }
};

Deviation check_case(const Case& item, const Extent& extent, DType dtype, const DevicePtr& device,
                     const DevicePtr& host);

}  // namespace sluice::bench
