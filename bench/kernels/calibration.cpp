#include "bench/kernels/calibration.h"

#include <fmt/format.h>

#include "kernels/base/run.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/gemm.h"

namespace sluice::bench {

Calibration::Calibration(DevicePtr device, const TimerOptions& options)
    : device_(device), timer_(std::move(device), options) {}

std::size_t Calibration::copy_bytes() const {
  return std::size_t{is_gpu(device_) ? 1024u : 256u} << 20;
}

std::int64_t Calibration::gemm_size(DType dtype) const {
  if (!is_gpu(device_)) return 1536;
  return dtype == DType::f32 ? 4096 : 8192;
}

std::string Calibration::copy_shape() const {
  return fmt::format("{} MiB", copy_bytes() >> 20);
}

std::string Calibration::gemm_shape(DType dtype) const {
  return fmt::format("{0}x{0}x{0}", gemm_size(dtype));
}

double Calibration::copy_rate() {
  if (copy_rate_ > 0) return copy_rate_;
  const auto bytes = static_cast<std::int64_t>(copy_bytes());
  const Operand half{.dtype = DType::f32, .shape = {bytes / 4}};
  const Buffers buffers(device_, {.operands = {half, half}}, 1);
  std::byte* const to = buffers.operands(0)[0].address;
  const std::byte* const from = buffers.operands(0)[1].address;
  Runtime& runtime = device_->runtime();
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    runtime.copy_within(to + begin, from + begin, static_cast<std::size_t>(end - begin),
                        device_->stream());
  };
  // One processor core does not use the full memory bandwidth, whereas kernels use all cores.
  const auto copy_all = [&] {
    if (device_->device().kind == DeviceKind::cpu)
      cpu::parallel_ranges(bytes, std::int64_t{4} << 20, copy);
    else
      copy(0, bytes);
  };
  const Timing timing = timer_.time([&](int) { copy_all(); }, 1);
  copy_rate_ = 2e3 * static_cast<double>(bytes) / timing.median;
  return copy_rate_;
}

double Calibration::gemm_rate(DType dtype) {
  if (const auto known = gemm_rates_.find(dtype); known != gemm_rates_.end()) return known->second;
  const std::int64_t n = gemm_size(dtype);
  const Problem problem{.operands = {{.dtype = dtype, .shape = {n, n}, .role = Role::output},
                                     {.dtype = dtype, .shape = {n, n}},
                                     {.dtype = dtype, .shape = {n, n}}},
                        .launch = [tf32 = device_->tf32()](const Operands& v, Stream stream) {
                          run(Gemm{.out = v[0], .a = v[1], .b = v[2], .tf32 = tf32}, stream);
                        }};
  const auto size = static_cast<double>(n);
  const double rate = 2e3 * size * size * size / timer_.time(problem).median;
  return gemm_rates_.emplace(dtype, rate).first->second;
}

}  // namespace sluice::bench
