#pragma once

#include <map>
#include <vector>

#include "kernels/cuda/queue.h"
#include "tests/support/gpu/forwarding_runtime.h"

namespace sluice::test {

/// A GPU that notes when the host waits for it.
class WatchedRuntime final : public ForwardingRuntime {
 public:
  using ForwardingRuntime::ForwardingRuntime;

  /// Kernels and matrix products given to the compute stream so far.
  std::size_t launches() const { return cuda::queue_of(compute_stream()).launches; }

  /// A wait of the host for work that was not done.
  struct Wait {
    std::size_t launched;  ///< launches() when it began
    std::size_t awaited;   ///< how many of them it waited for
  };
  const std::vector<Wait>& waits() const { return waits_; }

  void synchronize(Stream stream) override {
    waits_.push_back({launches(), launches()});
    ForwardingRuntime::synchronize(stream);
  }
  void record(Event event, Stream stream) override {
    recorded_[event.id] = launches();
    ForwardingRuntime::record(event, stream);
  }
  void synchronize(Event event) override {
    if (!reached(event)) waits_.push_back({launches(), recorded_[event.id]});
    ForwardingRuntime::synchronize(event);
  }
  std::byte* reserve_pinned(std::size_t bytes) override {
    std::byte* const start = ForwardingRuntime::reserve_pinned(bytes);
    pinned_.push_back({start, start + bytes});
    return start;
  }
  void copy_from_host(std::byte* to, const std::byte* from, std::size_t n, Stream s) override {
    if (!is_pinned(from)) waits_.push_back({launches(), launches()});
    ForwardingRuntime::copy_from_host(to, from, n, s);
  }
  void copy_to_host(std::byte* to, const std::byte* from, std::size_t n, Stream s) override {
    if (!is_pinned(to)) waits_.push_back({launches(), launches()});
    ForwardingRuntime::copy_to_host(to, from, n, s);
  }

 private:
  struct Range {
    const std::byte *first, *last;
  };
  bool is_pinned(const std::byte* address) const {
    for (const Range& range : pinned_)
      if (address >= range.first && address < range.last) return true;
    return false;
  }

  std::vector<Wait> waits_;
  std::map<std::uint64_t, std::size_t> recorded_;  ///< launches before an event's last record
  std::vector<Range> pinned_;
};

}  // namespace sluice::test
