#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace sluice::simt {

/// One record of an event. A waiter waits for the record that was the last one when it began to
/// wait, even if the event is recorded again, in another stream, before this record is reached.
struct Point {
  bool reached = false;
  std::chrono::steady_clock::time_point when{};
};

struct EventState {
  std::shared_ptr<Point> last = std::make_shared<Point>(Point{.reached = true});
};

struct Work {
  std::function<void()> run;
  std::shared_ptr<const Point> after{};  ///< record that must be reached first
  std::function<bool()> ready{};         ///< what must be true first, by the work of other devices
  bool records = false;                  ///< it is a record of an event

  bool recordable() const { return after == nullptr && !ready && !records; }
};

/// A graph: what a stream was given during a capture.
using RecordedWork = std::vector<Work>;

}  // namespace sluice::simt
