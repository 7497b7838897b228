#include "kernels/clip.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"

namespace sluice {

void launch_cpu(const ClipFactor& op) {
  const double* partial = op.partial.data<double>();
  double sum = 0;
  for (std::int64_t i = 0; i < op.partial.size(); ++i)
    sum += partial[i];
  const double norm = std::sqrt(sum) / op.loss_scale;
  *op.norm.data<double>() = norm;
  double factor = op.limit > 0 ? std::min(1.0, op.limit / (norm + 1e-6)) : 1.0;
  factor = std::isfinite(norm) ? factor / op.loss_scale : std::numeric_limits<double>::quiet_NaN();
  dispatch_floating(op.factor.dtype, [&]<class T>() {
    cpu::store(*op.factor.data<T>(), static_cast<cpu::Accumulator<T>>(factor));
  });
}

}  // namespace sluice
