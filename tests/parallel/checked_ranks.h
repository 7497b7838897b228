#pragma once

#include <utility>

#include "tests/parallel/ranks.h"
#include "tests/support/catch.h"

namespace sluice::test {

/// Runs ranks as threads; an exception on any of them fails the test.
template <class Body>
void check_threads(int ranks, Body&& body) {
  REQUIRE_NOTHROW(run_on_threads(ranks, std::forward<Body>(body)));
}

/// The same with a communicator for each rank.
inline void check_ranks(int ranks, const RankBody& body,
                        const Communicator::Options& options = patient()) {
  REQUIRE_NOTHROW(on_ranks(ranks, body, options));
}

}  // namespace sluice::test
