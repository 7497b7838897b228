#include "engine/timeline.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {

Timeline::Timeline(DevicePtr device)
    : device_(std::move(device)),
      by_events_(device_->device().kind == DeviceKind::cuda),
      start_(Clock::now()) {
  if (!by_events_) return;
  Runtime& runtime = device_->runtime();
  for (Event* event : {&base_, &next_base_}) {
    *event = runtime.make_event();
    runtime.record(*event, device_->stream());
  }
  runtime.synchronize(base_);
  base_time_ = since_start();
}

double Timeline::since_start() const {
  return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
}

/// Moves the origin, because differences of event times lose precision as they grow.
void Timeline::rebase() {
  Runtime& runtime = device_->runtime();
  runtime.synchronize(next_base_);  // recorded before the work of this take()
  base_time_ += runtime.milliseconds(base_, next_base_);
  std::swap(base_, next_base_);
  runtime.record(next_base_, device_->stream());
}

std::size_t Timeline::begin(std::string_view name, Lane lane, Stream stream, Label label) {
  if (count_ == spans_.size()) {
    spans_.emplace_back();
    if (by_events_) {
      spans_.back().first = device_->runtime().make_event();
      spans_.back().last = device_->runtime().make_event();
    }
  }
  Open& span = spans_[count_];
  span.name = name;
  span.lane = lane;
  span.stream = stream;
  span.label = label;
  if (by_events(lane))
    device_->runtime().record(span.first, stream);
  else
    span.began = Clock::now();
  return count_++;
}

void Timeline::end(std::size_t index) {
  check(index < count_, "a span was ended that was not begun since the last take()");
  Open& span = spans_[index];
  if (by_events(span.lane))
    device_->runtime().record(span.last, span.stream);
  else
    span.ended = Clock::now();
}

void Timeline::close_step() {
  if (by_events_) closed_ = count_;
}

std::vector<Timeline::Span> Timeline::take() {
  const std::size_t count = std::exchange(closed_, {}).value_or(count_);
  std::vector<Span> taken;
  taken.reserve(count);
  Runtime& runtime = device_->runtime();
  for (std::size_t i = 0; i < count; ++i) {
    const Open& span = spans_[i];
    double start = 0, length = 0;
    if (by_events(span.lane)) {
      runtime.synchronize(span.last);
      start = base_time_ + runtime.milliseconds(base_, span.first);
      length = runtime.milliseconds(span.first, span.last);
    } else {
      start = std::chrono::duration<double, std::milli>(span.began - start_).count();
      length = std::chrono::duration<double, std::milli>(span.ended - span.began).count();
    }
    taken.push_back({span.name, span.lane, start, length, span.label});
  }
  const auto begin = spans_.begin();
  std::rotate(begin, begin + static_cast<std::ptrdiff_t>(count),
              begin + static_cast<std::ptrdiff_t>(count_));
  count_ -= count;
  if (by_events_) rebase();
  return taken;
}

}  // namespace sluice
