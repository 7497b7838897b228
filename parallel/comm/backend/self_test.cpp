#include "parallel/comm/backend/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "engine/tensor.h"
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
  Test(Backend& backend, const DevicePtr& device, double timeout, std::size_t count)
      : backend_(backend),
        device_(device),
        timeout_(timeout),
        data_(Tensor::empty(device, {static_cast<std::int64_t>(count)}, DType::i32)) {}

  View data() const { return data_.view(); }
  View part(int rank) const { return data_.slice(rank * per_rank, {per_rank}).view(); }

  /// Notes it if the operation does not make `after` of `before`. The test goes on, since other
  /// ranks do. Throws Error if the operation does not end.
  void expect(CollectiveCall call, const Numbers& before, const Numbers& after) {
    data_.copy_bytes_from(std::as_bytes(std::span(before)));
    call.stream = device_->stream();
    if (call.kind != Collective::p2p) call.data = data();
    const auto work = backend_.start(call, 0);
    const auto end = Clock::now() + std::chrono::duration<double>(timeout_);
    while (!work->advance()) {
      if (Clock::now() > end)
        fail(fmt::format("{} has not ended within {:g} s", name_of(call.kind), timeout_));
      std::this_thread::yield();
    }
    work->join();
    Numbers found(before.size());
    device_->runtime().copy_to_host(reinterpret_cast<std::byte*>(found.data()), data().address,
                                    data_.bytes(), device_->stream());
    if (found != after && fault_.empty())
      fault_ = fmt::format("{} gave wrong numbers", name_of(call.kind));
  }
  const std::string& fault() const { return fault_; }

 private:
  Backend& backend_;
  const DevicePtr& device_;
  double timeout_;
  Tensor data_;
  std::string fault_{};
};

}  // namespace

std::string self_test(Backend& backend, int rank, int ranks, const DevicePtr& device,
                      double timeout) try {
  const Numbers mine = numbers_of(rank, ranks), sum = sum_of_all(ranks);
  const int last = ranks - 1, next = (rank + 1) % ranks, previous = (rank + last) % ranks;
  const auto parts = equal_parts(per_rank, ranks);
  Test test(backend, device, timeout, mine.size());
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
