#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/transport/thread_transport.h"

// Shared by tests of collectives on threads and under MPI. The test framework's assertions work on
// one thread only, so ranks throw, and run_on_threads rethrows the first exception.

namespace sluice::test {

inline void expect(bool holds, std::string_view what) {
  if (!holds) throw std::runtime_error(std::string(what));
}

template <class T>
View view_of(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()),
          dtype_for<T>(),
          {static_cast<std::int64_t>(values.size())}};
}

inline std::uint64_t mixed(std::uint64_t x) {
  x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 30)) * 0x94D049BB133111EBu;
  return x ^ (x >> 27);
}

/// Returns a rank's contribution: numbers of both signs and of very different magnitude, so that
/// their sum depends on the order of additions.
template <class T>
std::vector<T> numbers(int rank, std::size_t count, std::uint64_t salt = 0) {
  std::vector<T> values(count);
  const std::uint64_t start = mixed(salt * 1000 + static_cast<std::uint64_t>(rank)) << 20;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = mixed(start + i);
    const double fraction = static_cast<double>(bits >> 32) * 0x1p-31 - 1;
    if constexpr (std::is_integral_v<T>)
      values[i] = static_cast<T>(bits % 100);
    else if (i % 8 == 5 && rank % 2 == 0)  // even ranks' values cancel; odd ranks' lose bits
      values[i] = static_cast<T>(rank % 4 == 0 ? 0x1p15F : -0x1p15F);
    else
      values[i] = static_cast<T>(static_cast<float>(
          std::ldexp(fraction, i % 8 == 5 ? -6 : static_cast<int>(bits % 24) - 12)));
    if constexpr (std::is_same_v<T, double>) values[i] *= 1 + fraction * 0x1p-40;
  }
  return values;
}

template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

/// The reference loop: reduces over ranks in the order `order` and rounds once.
template <class T>
std::vector<T> reduced(const std::vector<int>& order, std::size_t count, std::uint64_t salt,
                       ReduceOp op) {
  std::vector<Wide<T>> sums(count);
  bool first = true;
  for (const int rank : order) {
    const auto values = numbers<T>(rank, count, salt);
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<Wide<T>>(values[i]);
      sums[i] = first                 ? value
                : op == ReduceOp::sum ? static_cast<Wide<T>>(sums[i] + value)
                                      : std::max(sums[i], value);
    }
    first = false;
  }
  std::vector<T> rounded(count);
  std::ranges::transform(sums, rounded.begin(), [](Wide<T> sum) { return static_cast<T>(sum); });
  return rounded;
}

inline std::vector<int> in_order(int ranks) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    order[static_cast<std::size_t>(rank)] = rank;
  return order;
}

template <class T>
std::vector<T> reduced(int ranks, std::size_t count, std::uint64_t salt,
                       ReduceOp op = ReduceOp::sum) {
  return reduced<T>(in_order(ranks), count, salt, op);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& wanted, std::string_view what) {
  if (same_bits(got, wanted)) return;
  std::size_t at = 0;
  while (at < std::min(got.size(), wanted.size()) &&
         std::memcmp(&got[at], &wanted[at], sizeof(T)) == 0)
    ++at;
  throw std::runtime_error(std::string(what) + ": other bits from element " + std::to_string(at) +
                           " of " + std::to_string(wanted.size()) + " on");
}

/// Returns parts with gaps, some of them empty, in an order that differs from that of the ranks.
inline std::vector<Part> uneven_parts(std::size_t count, int ranks) {
  const auto total = static_cast<std::int64_t>(count);
  std::vector<Part> parts(static_cast<std::size_t>(ranks));
  std::int64_t at = 0;
  for (int rank = ranks - 1; rank >= 0; --rank) {
    const std::int64_t room = total - at;
    const std::int64_t length = rank % 3 == 1 ? 0 : rank == 0 ? room : room / 3;
    parts[static_cast<std::size_t>(rank)] = {at, length};
    at += length + (length > 1 && rank > 0 ? 1 : 0);
  }
  return parts;
}

inline Communicator::Options patient() {
  return {.name = "test", .timeout = 60, .checked = true};
}

using RankBody = std::function<void(Communicator&)>;
inline void on_ranks(int ranks, const RankBody& body,
                     const Communicator::Options& options = patient()) {
  run_on_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    Communicator communicator(std::move(transport), nullptr, options);
    body(communicator);
  });
}

}  // namespace sluice::test
