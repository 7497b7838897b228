#pragma once

#include "bench/kernels/case.h"
#include "engine/device_context.h"

namespace sluice::bench {

/// How far a kernel's results are from the CPU's in f64, on the problem itself or, where that is
/// large, on one of fewer tokens.
struct Deviation {
  double error = 0;  ///< |result - reference| / |reference|, of the worst operand; l2 norms
  double worst = 0;  ///< of one element, relative to it plus the operand's root mean square
  double bound = 0;  ///< what `error` may be
  std::int64_t tokens = 0;

  /// One wrong element among millions hardly moves the norm: it has a bound of its own.
  bool within() const { return error <= bound && worst <= 16 * bound; }
};

Deviation check_case(const Case& item, const Extent& extent, DType dtype, const DevicePtr& device,
                     const DevicePtr& host);

}  // namespace sluice::bench
