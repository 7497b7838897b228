#pragma once

#include "tests/support/gpu/forwarding_runtime.h"

namespace sluice::test {

/// A GPU whose system pins blocks of less than `limit` bytes only.
class UnpinnedRuntime final : public ForwardingRuntime {
 public:
  UnpinnedRuntime(std::uint64_t seed, std::size_t limit) : ForwardingRuntime(seed), limit_(limit) {}

  std::byte* reserve_pinned(std::size_t bytes) override {
    return bytes < limit_ ? ForwardingRuntime::reserve_pinned(bytes) : nullptr;
  }

 private:
  std::size_t limit_;
};

}  // namespace sluice::test
