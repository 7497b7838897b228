#include "bench/kernels/timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace sluice::bench {
namespace {

constexpr int batch = 64;
constexpr std::size_t cold_bytes = std::size_t{256} << 20;  // several times any cache's size
constexpr std::size_t head_start_bytes = std::size_t{256} << 20;
/// Fills queued ahead of a batch: 65 us each at 4 TB/s. The host thus finishes queueing the batch
/// before the GPU starts it, and launch overhead does not count as the kernel's time.
constexpr int head_start_fills = 10;
constexpr int least_repetitions = 5;
constexpr int max_repetitions = 2000;

}  // namespace

double quantile(std::vector<double> values, double fraction) {
  std::ranges::sort(values);
  const double at = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], at - static_cast<double>(below));
}

bool is_gpu(const DevicePtr& device) {
  return device->device().kind == DeviceKind::cuda && !device->runtime().info().emulated;
}

Timer::Timer(DevicePtr device, const TimerOptions& options)
    : device_(std::move(device)), options_(options) {
  if (device_->device().kind != DeviceKind::cuda) return;
  for (int i = 0; i < batch; ++i) {
    starts_.push_back(device_->runtime().make_event());
    ends_.push_back(device_->runtime().make_event());
  }
  if (is_gpu(device_)) head_start_ = std::make_unique<Block>(device_, head_start_bytes);
}

int Timer::copies_of(std::size_t bytes) const {
  if (!options_.cold) return 1;
  const std::size_t wanted = std::clamp<std::size_t>((cold_bytes + bytes - 1) / bytes, 1, 64);
  const std::size_t room = device_->arena().capacity() - device_->arena().in_use();
  return static_cast<int>(std::max<std::size_t>(1, std::min(wanted, room / 2 / bytes)));
}

void Timer::run_batch(const std::function<void(int copy)>& launch, int copies, int count,
                      std::vector<double>& times) const {
  Runtime& runtime = device_->runtime();
  const Stream stream = device_->stream();
  if (starts_.empty()) {
    for (int i = 0; i < count; ++i) {
      const auto start = std::chrono::steady_clock::now();
      launch(i % copies);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      times.push_back(took.count());
    }
    return;
  }
  if (head_start_) {
    for (int i = 0; i < head_start_fills; ++i)
      runtime.fill_zero(head_start_->start(), head_start_bytes, stream);
    launch(copies - 1);  // not measured: writes back the fills' dirty lines
  }
  for (int i = 0; i < count; ++i) {
    runtime.record(starts_[static_cast<std::size_t>(i)], stream);
    launch(i % copies);
    runtime.record(ends_[static_cast<std::size_t>(i)], stream);
  }
  runtime.synchronize(stream);
  for (int i = 0; i < count; ++i)
    times.push_back(runtime.milliseconds(starts_[static_cast<std::size_t>(i)],
                                         ends_[static_cast<std::size_t>(i)]));
}

Timing Timer::time(const Problem& problem) const {
  Buffers buffers(device_, problem, copies_of(Buffers::bytes_for(problem)));
  const Stream stream = device_->stream();
  if (problem.prepare)
    for (int copy = 0; copy < buffers.copies(); ++copy)
      problem.prepare(buffers.operands(copy), stream);
  return time([&](int copy) { problem.launch(buffers.operands(copy), stream); }, buffers.copies());
}

Timing Timer::time(const std::function<void(int copy)>& launch, int copies) const {
  std::vector<double> times;
  run_batch(launch, copies, 1, times);  // the first run may choose an algorithm or touch memory
  times.clear();
  run_batch(launch, copies, 3, times);
  const double estimate = std::max(quantile(times, 0.5), 1e-4);
  const auto repetitions = [&](double milliseconds, int least) {
    return static_cast<int>(std::clamp(milliseconds / estimate, static_cast<double>(least),
                                       static_cast<double>(max_repetitions)));
  };
  const auto run = [&](int count) {
    times.clear();
    for (; count > 0; count -= batch)
      run_batch(launch, copies, std::min(count, batch), times);
  };
  if (const int warm = repetitions(options_.warmup_ms, 0); warm > 0) run(warm);
  run(repetitions(options_.measured_ms, least_repetitions));
  return {.median = quantile(times, 0.5),
          .p20 = quantile(times, 0.2),
          .p80 = quantile(times, 0.8),
          .repetitions = static_cast<int>(times.size())};
}

}  // namespace sluice::bench
