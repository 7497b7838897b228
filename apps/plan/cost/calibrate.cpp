#include "apps/plan/cost/calibrate.h"

#include <algorithm>
#include <chrono>
#include <functional>
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

double largest_rate(const std::vector<double>& operations,
                    const std::function<double(std::size_t)>& seconds_of) {
  constexpr double measurable = 2e-3, enough = 10e-3, slow = 50e-3;  // seconds
  const auto measure = [&](std::size_t size) {
    const double seconds = seconds_of(size);
    return seconds > 0 ? seconds : 1e-9;
  };
  std::size_t size = 0;
  double seconds = 0, rate = 0;
  for (;; ++size) {
    // A size has several times the operations of the one before. Where the time hardly grew, it
    // went by while the threads waited for a processor that another program had.
    const double waited = size == 0 ? slow : 4 * seconds;
    seconds = measure(size);  // warms up
    const bool certain = size > 0 && seconds >= std::max(waited, slow);
    if (!certain) seconds = std::min(seconds, measure(size));
    rate = std::max(rate, operations[size] / seconds);
    if (seconds >= std::max(waited, measurable) || size + 1 == operations.size()) break;
  }
  double spent = seconds;
  for (int repetition = 0; repetition < 4 && spent < enough; ++repetition) {
    const double again = measure(size);
    rate = std::max(rate, operations[size] / again);
    spent += again;
  }
  return rate;
}

double measure_matmul_rate(DeviceKind kind, const Precision& precision) {
  const DevicePtr device = make_device(kind, precision, std::size_t{512} << 20);
  const DType dtype = precision.dtype;
  // A GPU needs a larger product to be busy.
  const bool large = kind == DeviceKind::cuda && !device->runtime().info().emulated;
  const std::int64_t longest = large ? 4096 : 768;
  std::vector<std::int64_t> edges;
  std::vector<double> operations;
  for (std::int64_t edge = longest / 16; edge <= longest; edge *= 2) {
    edges.push_back(edge);
    operations.push_back(2.0 * static_cast<double>(edge * 2 * edge * edge));
  }
  const Tensor a = random_matrix(device, longest, longest, dtype);
  const Tensor b = random_matrix(device, longest, 2 * longest, dtype);
  const Tensor c = Tensor::empty(device, {longest, 2 * longest}, dtype);
  device->runtime().synchronize(device->stream());
  return largest_rate(operations, [&](std::size_t size) {
    const std::int64_t m = edges[size], n = 2 * m, k = m;
    const auto start = Clock::now();
    run(Gemm{.out = c.slice(0, {m, n}).view(),
             .a = a.slice(0, {m, k}).view(),
             .b = b.slice(0, {k, n}).view(),
             .tf32 = precision.tf32},
        device->stream());
    device->runtime().synchronize(device->stream());
    const std::chrono::duration<double> seconds = Clock::now() - start;
    return seconds.count();
  });
}

}  // namespace sluice
