#include "apps/train/calibrate.h"

#include <algorithm>
#include <chrono>

#include "engine/tensor.h"
#include "kernels/base/run.h"
#include "kernels/gemm.h"

namespace sluice {

double measure_matmul_rate(DType dtype) {
  const DevicePtr device = make_cpu_device(std::size_t{1} << 26);
  constexpr std::int64_t m = 768, n = 1536, k = 768;
  const Tensor a = Tensor::zeros(device, {m, k}, dtype);
  const Tensor b = Tensor::zeros(device, {k, n}, dtype);
  const Tensor c = Tensor::zeros(device, {m, n}, dtype);
  double best = 0;
  for (int run_number = 0; run_number < 6; ++run_number) {
    const auto start = std::chrono::steady_clock::now();
    run(Gemm{.out = c.view(), .a = a.view(), .b = b.view()}, device->stream());
    device->runtime().synchronize(device->stream());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * m * n * k / seconds.count());
  }
  return best;
}

}  // namespace sluice
