#include "apps/plan/cost/calibrate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/rng.h"
#include "engine/tensor.h"
#include "kernels/adamw.h"
#include "kernels/base/run.h"
#include "kernels/gemm.h"

namespace sluice {
namespace {

/// Uses random values: with zeros a GPU draws less power and runs faster than it would in training.
Tensor random_matrix(const DevicePtr& device, std::int64_t rows, std::int64_t columns,
                     DType dtype) {
  std::vector<float> row(static_cast<std::size_t>(columns));
  fill_normal(random_key(0, "calibration"), 0, 1, row);
  const std::vector<double> wide(row.begin(), row.end());
  const Tensor matrix = Tensor::empty(device, {rows, columns}, dtype);
  const Tensor first = Tensor::from_host(device, {columns}, dtype, wide);
  for (std::int64_t i = 0; i < rows; ++i)
    device->runtime().copy_within(matrix.slice(i * columns, {columns}).view().address,
                                  first.view().address, first.bytes(), device->stream());
  return matrix;
}

using Clock = std::chrono::steady_clock;

}  // namespace

double measure_update_rate() {
  constexpr std::int64_t count = std::int64_t{8} << 20;  // more than caches hold
  const DevicePtr cpu = make_cpu_device(static_cast<std::size_t>(4 * count * 4) + 4096);
  const auto zeros = [&] { return Tensor::zeros(cpu, {count}, DType::f32); };
  const Tensor weights = zeros(), gradient = zeros(), first = zeros(), second = zeros();
  double best = 0;
  for (int run_number = 0; run_number < 4; ++run_number) {
    const auto start = Clock::now();
    run(AdamW{.master = weights.view(),
              .first_moment = first.view(),
              .second_moment = second.view(),
              .grad = gradient.view()},
        cpu->stream());
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, 7.0 * 4.0 * static_cast<double>(count) / seconds.count());
  }
  return best;
}

double measure_matmul_rate(DeviceKind kind, const Precision& precision) {
  const DevicePtr device = make_device(kind, precision, std::size_t{512} << 20);
  const DType dtype = precision.dtype;
  // A GPU needs a larger product to be busy.
  const bool large = kind == DeviceKind::cuda && !device->runtime().info().emulated;
  const std::int64_t m = large ? 4096 : 768, n = large ? 8192 : 1536, k = large ? 4096 : 768;
  const Tensor a = random_matrix(device, m, k, dtype);
  const Tensor b = random_matrix(device, k, n, dtype);
  const Tensor c = Tensor::empty(device, {m, n}, dtype);
  double best = 0, spent = 0;
  device->runtime().synchronize(device->stream());
  // Six long products could take longer than the training of a small run.
  for (int run_number = 0; run_number < 6 && spent < 0.05; ++run_number) {
    const auto start = Clock::now();
    run(Gemm{.out = c.view(), .a = a.view(), .b = b.view(), .tf32 = precision.tf32},
        device->stream());
    device->runtime().synchronize(device->stream());
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(m * n * k) / seconds.count());
    if (run_number > 0) spent += seconds.count();  // the first warms up
  }
  return best;
}

}  // namespace sluice
