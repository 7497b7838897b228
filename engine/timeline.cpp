#include "engine/timeline.h"

#include "kernels/base/error.h"

namespace sluice {

Timeline::Timeline(DevicePtr device)
    : device_(std::move(device)),
      by_events_(device_->device().kind == DeviceKind::cuda),
      start_(Clock::now()) {
  if (!by_events_) return;
  base_ = device_->runtime().make_event();
  rebase();
}

double Timeline::since_start() const {
  return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
}

/// Moves the origin to now, because differences of event times lose precision as they grow.
void Timeline::rebase() {
  device_->runtime().record(base_, device_->stream());
  device_->runtime().synchronize(base_);
  base_time_ = since_start();
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

std::vector<Timeline::Span> Timeline::take() {
  std::vector<Span> taken;
  taken.reserve(count_);
  Runtime& runtime = device_->runtime();
  for (std::size_t i = 0; i < count_; ++i) {
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
  count_ = 0;
  if (by_events_) rebase();
  return taken;
}

}  // namespace sluice
