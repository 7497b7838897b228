#pragma once

#include <cstdint>
#include <string_view>

#include "parallel/comm/monitor.h"

namespace sluice::test {

/// Counts the collectives that a rank begins and ends.
class CollectiveCounter final : public Monitor {
 public:
  std::uint64_t begin(std::string_view, const Signature&) override { return ++begun; }
  void wait(std::uint64_t, double) override {}
  void end(std::uint64_t) override { ++ended; }

  std::uint64_t begun = 0, ended = 0;
};

}  // namespace sluice::test
