#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/device_context.h"
#include "kernels/base/error.h"

namespace sluice {

/// Stage and micro-batch of a pipeline for which work was done; -1: none.
struct SpanLabel {
  int stage = -1;
  int micro_batch = -1;

  friend bool operator==(const SpanLabel&, const SpanLabel&) = default;
};

/// Records when work began and ended on the streams of a device. It uses events, which are meant to
/// cost the streams next to nothing. The host's clock times work on the CPU, where work is done
/// when a call returns, the network, and the host's own work beside a device.
class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  using Label = SpanLabel;

  enum class Lane : std::uint8_t { compute, to_device, to_host, network, host };

  struct Span {
    std::string_view name;  ///< must be a string literal
    Lane lane;
    double start;  ///< milliseconds since the timeline was made
    double length;
    Label label{};
  };

  explicit Timeline(DevicePtr device);

  /// Time at which the timeline was made.
  Clock::time_point started() const { return start_; }

  /// Opens a span that begins with the next work given to the stream; returns the span's number.
  std::size_t begin(std::string_view name, Lane lane, Stream stream, Label label = {});
  void end(std::size_t span);
  /// Spans that begin from now on are returned by the take() after the next one, so that the host
  /// need not wait for them. Does nothing where work is done when a call returns.
  void close_step();
  /// Waits for the recorded work and returns its spans in the order of the calls of begin(). All
  /// spans must have ended.
  std::vector<Span> take();

 private:
  struct Open {
    std::string_view name;
    Lane lane;
    Stream stream;
    Event first, last;
    Clock::time_point began, ended;
    Label label;
  };
  double since_start() const;
  bool by_events(Lane lane) const {
    return by_events_ && lane != Lane::network && lane != Lane::host;
  }
  void rebase();

  DevicePtr device_;
  bool by_events_;
  Clock::time_point start_;
  /// Events of the compute stream, the later one recorded by the last take(). No span that is still
  /// to be taken began before the earlier one.
  Event base_, next_base_;
  double base_time_ = 0;     ///< time of `base_`, in milliseconds since the start
  std::vector<Open> spans_;  ///< entries are reused, because a runtime does not take events back
  std::size_t count_ = 0;
  std::optional<std::size_t> closed_{};  ///< how many spans the next take() returns; none: all
};

/// Records a span for the length of a scope; does nothing without a timeline.
class Recorded {
 public:
  Recorded(Timeline* timeline, std::string_view name, Timeline::Lane lane, Stream stream,
           Timeline::Label label = {})
      : timeline_(timeline),
        span_(timeline != nullptr ? timeline->begin(name, lane, stream, label) : 0) {}
  ~Recorded() {
    try {
      if (timeline_ != nullptr) timeline_->end(span_);
    } catch (const Error&) {  // a device that failed is being reported already
      return;
    }
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

 private:
  Timeline* timeline_;
  std::size_t span_;
};

}  // namespace sluice
