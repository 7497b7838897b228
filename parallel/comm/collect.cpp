#include "parallel/comm/collect.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace sluice {
namespace {

constexpr std::size_t chunk_bytes = 16384;

/// `bytes` must not be empty.
bool all_zeros(std::span<const std::byte> bytes) {
  return bytes[0] == std::byte{0} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

/// Marks the chunks that are not all zeros.
std::vector<std::uint8_t> marks_of(std::span<const std::byte> data) {
  std::vector<std::uint8_t> marks;
  for (std::size_t begin = 0; begin < data.size(); begin += chunk_bytes)
    marks.push_back(all_zeros(data.subspan(begin, std::min(chunk_bytes, data.size() - begin))) ? 0
                                                                                               : 1);
  return marks;
}

/// Returns the stretches of `data` whose chunks are marked.
std::vector<std::span<std::byte>> stretches_of(std::span<const std::uint8_t> marks,
                                               std::span<std::byte> data) {
  std::vector<std::span<std::byte>> stretches;
  for (std::size_t first = 0; first < marks.size(); ++first) {
    if (marks[first] == 0) continue;
    std::size_t end = first;
    while (end < marks.size() && marks[end] != 0)
      ++end;
    const std::size_t begin = first * chunk_bytes;
    stretches.push_back(data.subspan(begin, std::min(data.size(), end * chunk_bytes) - begin));
    first = end;
  }
  return stretches;
}

View view_of(std::span<std::byte> bytes) {
  return {bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())}};
}

/// Returns the same for a vector of bytes.
template <class Byte>
View view_of(std::vector<Byte>& bytes) {
  return view_of(std::as_writable_bytes(std::span(bytes)));
}

}  // namespace

void collect(Communicator& ranks, std::span<std::byte> data, std::string_view label) {
  std::vector<std::uint8_t> marks = marks_of(data), of_all;
  if (ranks.rank() == 0) of_all.resize(marks.size() * static_cast<std::size_t>(ranks.size()));
  ranks.gather(view_of(marks), view_of(of_all), 0, {.label = label})->wait();

  std::vector<Transfer> transfers;
  if (ranks.rank() > 0)
    for (const auto& stretch : stretches_of(marks, data))
      transfers.push_back({true, 0, view_of(stretch)});
  struct Arriving {
    std::span<std::byte> place;
    std::vector<std::byte> bytes;
  };
  std::vector<Arriving> arriving;
  for (int rank = 1; rank < ranks.size() && ranks.rank() == 0; ++rank)
    for (const auto& stretch : stretches_of(
             std::span(of_all).subspan(marks.size() * static_cast<std::size_t>(rank), marks.size()),
             data)) {
      arriving.push_back({stretch, std::vector<std::byte>(stretch.size())});
      transfers.push_back({false, rank, view_of(arriving.back().bytes)});
    }
  if (!transfers.empty()) ranks.p2p(std::move(transfers), {.label = label})->wait();
  for (const auto& [place, bytes] : arriving)
    std::ranges::transform(place, bytes, place.begin(), std::bit_or{});
}

}  // namespace sluice
