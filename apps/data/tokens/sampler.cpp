#include "apps/data/tokens/sampler.h"

#include <algorithm>
#include <bit>

#include "kernels/base/error.h"
#include "kernels/base/philox.h"

namespace sluice {

std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key) {
  const int bits = static_cast<int>(
      std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(count - 1, 1))));
  const int half = (bits + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = left ^ (mix_key(mix_key(key, round), right) & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

SequenceSampler::SequenceSampler(Order order, std::uint64_t seed, std::int64_t tokens,
                                 std::int64_t batch, std::int64_t seq_len, std::int64_t row)
    : order_(order), seed_(mix_key(seed, 0xDA7A)), tokens_(tokens), seq_len_(seq_len), row_(row) {
  check(row > 0 ? tokens >= batch * row : tokens > batch * seq_len,
        "the data is shorter than one batch");
  const std::int64_t whole = row > 0 ? tokens / row : (tokens - 1) / seq_len;
  // Sequential windows of a text fill whole batches, and shuffled ones give one up so that their
  // start can move.
  windows_ = row > 0                      ? whole
             : order == Order::sequential ? whole / batch * batch
                                          : std::max<std::int64_t>(1, whole - 1);
}

std::int64_t SequenceSampler::start_of(std::int64_t index) const {
  const std::int64_t epoch = index / windows_;
  const std::int64_t within = index % windows_;
  if (order_ == Order::sequential) return within * (row_ > 0 ? row_ : seq_len_);
  const std::uint64_t key = mix_key(seed_, static_cast<std::uint64_t>(epoch));
  if (row_ > 0) return permuted(within, windows_, key) * row_;
  const std::int64_t slack = std::min(tokens_ - 1 - windows_ * seq_len_, seq_len_ - 1);
  const auto offset =
      static_cast<std::int64_t>(mix_key(key, 1) % static_cast<std::uint64_t>(slack + 1));
  return offset + permuted(within, windows_, key) * seq_len_;
}

}  // namespace sluice
