#include "parallel/comm/backend/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "kernels/base/error.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Numbers = std::vector<std::int32_t>;

constexpr std::int64_t per_rank = 4;

Numbers numbers_of(int rank, int ranks) {
  Numbers numbers;
  for (std::int32_t i = 0; i < per_rank * ranks; ++i)
    numbers.push_back(1000 * (rank + 1) + i);
  return numbers;
}

Numbers sum_of_all(int ranks) {
  Numbers sum(static_cast<std::size_t>(per_rank * ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const Numbers numbers = numbers_of(rank, ranks);
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] += numbers[i];
  }
  return sum;
}

/// Overwrites a rank's part of `all`.
void put(Numbers& all, int rank, const Numbers& from) {
  const auto begin = rank * per_rank;
  std::copy_n(from.begin() + begin, per_rank, all.begin() + begin);
}

class Test {
 public:
  Test(Backend& backend, Runtime& runtime, double timeout, const View& data)
      : backend_(backend), runtime_(runtime), timeout_(timeout), data_(data) {}

  View part(int rank) const {
    const std::int64_t bytes = per_rank * static_cast<std::int64_t>(sizeof(std::int32_t));
    return {data_.address + rank * bytes, DType::i32, {per_rank}};
  }

  /// Notes it if the operation does not make `after` of `before`. The test goes on, since other
  /// ranks do. Throws Error if the operation does not end.
  void expect(CollectiveCall call, const Numbers& before, const Numbers& after) {
    const auto numbers = std::as_bytes(std::span(before));
    call.stream = runtime_.compute_stream();
    runtime_.copy_from_host(data_.address, numbers.data(), numbers.size(), call.stream);
    runtime_.synchronize(call.stream);
    if (call.kind != Collective::p2p) call.data = data_;
    const auto work = backend_.start(call, 0);
    const auto end = Clock::now() + std::chrono::duration<double>(timeout_);
    while (!work->advance()) {
      if (Clock::now() > end)
        fail(fmt::format("{} has not ended within {:g} s", name_of(call.kind), timeout_));
      std::this_thread::yield();
    }
    work->join();
    Numbers found(before.size());
    runtime_.copy_to_host(reinterpret_cast<std::byte*>(found.data()), data_.address, numbers.size(),
                          call.stream);
    if (found != after && fault_.empty())
      fault_ = fmt::format("{} gave wrong numbers", name_of(call.kind));
  }
  const std::string& fault() const { return fault_; }

 private:
  Backend& backend_;
  Runtime& runtime_;
  double timeout_;
  View data_;
  std::string fault_{};
};

}  // namespace

std::size_t self_test_bytes(int ranks) {
  return static_cast<std::size_t>(per_rank * ranks) * sizeof(std::int32_t);
}

std::string self_test(Backend& backend, int rank, int ranks, Runtime& runtime, std::byte* memory,
                      double timeout) try {
  const Numbers mine = numbers_of(rank, ranks), sum = sum_of_all(ranks);
  const int last = ranks - 1, next = (rank + 1) % ranks, previous = (rank + last) % ranks;
  const auto parts = equal_parts(per_rank, ranks);
  Test test(backend, runtime, timeout, View(memory, DType::i32, {per_rank * ranks}));
  test.expect({.kind = Collective::all_reduce}, mine, sum);
  test.expect({.kind = Collective::reduce, .root = last}, mine, rank == last ? sum : mine);
  test.expect({.kind = Collective::broadcast, .root = last}, mine, numbers_of(last, ranks));
  Numbers scattered = mine, gathered = mine;
  put(scattered, rank, sum);
  test.expect({.kind = Collective::reduce_scatter, .parts = parts}, mine, scattered);
  for (int other = 0; other < ranks; ++other)
    put(gathered, other, numbers_of(other, ranks));
  test.expect({.kind = Collective::all_gather, .parts = parts}, mine, gathered);
  if (ranks > 1) {  // each rank sends its part to the next one
    Numbers passed = mine;
    put(passed, previous, numbers_of(previous, ranks));
    test.expect(
        {.kind = Collective::p2p,
         .transfers = {{true, next, test.part(rank)}, {false, previous, test.part(previous)}}},
        mine, passed);
  }
  return test.fault();
} catch (const Error& error) {
  return error.what();
}

}  // namespace sluice
