#include "kernels/cpu/parallel_for.h"
#include "tests/support/catch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace sluice::test::thread_pool_test {
namespace {

/// Returns how often each index was called. The body takes no time, or if `uneven` longer on some
/// indices, so that threads come and go at every moment.
std::vector<int> calls_of(std::int64_t count, bool uneven) {
  std::vector<int> calls(static_cast<std::size_t>(count));
  cpu::parallel_for(count, [&](std::int64_t i) {
    if (uneven && i % 7 == 3) std::this_thread::yield();
    ++calls[static_cast<std::size_t>(i)];
  });
  return calls;
}

bool each_once(const std::vector<int>& calls) {
  return std::ranges::count(calls, 1) == static_cast<std::ptrdiff_t>(calls.size());
}

}  // namespace

TEST_CASE("a parallel loop calls each index once, with any number of threads",
          "[thread_pool][threads]") {
  for (const int threads : {1, 2, 3, 8, 2}) {
    const cpu::ThreadLimit limit(threads);
    REQUIRE(cpu::threads() == threads);
    for (const std::int64_t count : {0, 1, 2, 3, 7, 8, 100, 4099})
      for (const bool uneven : {false, true}) {
        CAPTURE(threads, count, uneven);
        CHECK(each_once(calls_of(count, uneven)));
      }
  }
}

TEST_CASE("loops that follow each other at once do not mix", "[thread_pool][threads]") {
  const cpu::ThreadLimit limit(4);
  // A helper that is late for a loop must take nothing of it or of the next one.
  std::int64_t wrong = 0;
  for (std::int64_t round = 0; round < 20000; ++round) {
    const std::int64_t count = 1 + round % 5;
    std::atomic<std::int64_t> sum = 0;
    cpu::parallel_for(count, [&](std::int64_t i) { sum += 1000 * round + i; });
    wrong += sum == count * 1000 * round + count * (count - 1) / 2 ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("several threads may run loops at the same time", "[thread_pool][threads]") {
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < 3; ++caller)
      callers.emplace_back([&wrong, caller] {
        const cpu::ThreadLimit limit(1 + caller);
        for (int round = 0; round < 200; ++round)
          if (!each_once(calls_of(50 + caller, round % 2 == 0))) ++wrong;
      });
  }
  CHECK(wrong == 0);
}

TEST_CASE("a loop within a loop runs on the thread that calls it", "[thread_pool][threads]") {
  const cpu::ThreadLimit limit(3);
  std::vector<int> inner(12);
  cpu::parallel_for(4, [&](std::int64_t i) {
    const std::thread::id here = std::this_thread::get_id();
    cpu::parallel_for(3, [&](std::int64_t j) {
      inner[static_cast<std::size_t>(3 * i + j)] += here == std::this_thread::get_id() ? 1 : 100;
    });
  });
  CHECK(each_once(inner));
}

TEST_CASE("limits of threads nest, and count for their thread alone", "[thread_pool][threads]") {
  const int before = cpu::threads();
  {
    const cpu::ThreadLimit outer(3);
    {
      const cpu::ThreadLimit inner(1);
      CHECK(cpu::threads() == 1);
      int elsewhere = 0;
      std::thread([&] { elsewhere = cpu::threads(); }).join();
      CHECK(elsewhere == before);
    }
    CHECK(cpu::threads() == 3);
  }
  CHECK(cpu::threads() == before);
}

// A child of fork() has no helper threads; sanitizers do not allow it to use threads' locks.
#ifndef __SANITIZE_THREAD__
TEST_CASE("a child process computes without the helpers of its parent", "[thread_pool]") {
  const cpu::ThreadLimit limit(3);
  REQUIRE(each_once(calls_of(100, true)));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(each_once(calls_of(100, true)) ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

}  // namespace sluice::test::thread_pool_test
