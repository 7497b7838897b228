#pragma once

#include <string>

#include "tests/support/gpu/forwarding_runtime.h"

namespace sluice::test {

/// A GPU whose system pins blocks of less than `limit` bytes only, and of existing memory as many
/// pieces as `pieces` has a '1' for, in order.
class UnpinnedRuntime final : public ForwardingRuntime {
 public:
  UnpinnedRuntime(std::uint64_t seed, std::size_t limit, std::string pieces = {})
      : ForwardingRuntime(seed), limit_(limit), pieces_(std::move(pieces)) {}

  std::byte* reserve_pinned(std::size_t bytes) override {
    return bytes < limit_ ? ForwardingRuntime::reserve_pinned(bytes) : nullptr;
  }
  bool pin(std::byte* start, std::size_t bytes) override {
    return next_ < pieces_.size() && pieces_[next_++] == '1' &&
           ForwardingRuntime::pin(start, bytes);
  }

 private:
  std::size_t limit_;
  std::string pieces_;
  std::size_t next_ = 0;
};

}  // namespace sluice::test
