#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/target.h"
#include "kernels/cuda/warp.h"
#include "kernels/dropout.h"

namespace sluice::cuda {

/// The scores that dropout keeps of a warp's 16 rows and `columns` columns, in accumulator layout:
/// rows are queries and columns keys, or the reverse with `rows_are_keys`. One philox call decides
/// for four neighbouring keys, which two or four lanes hold: each lane computes a part and shares
/// it. The loop is not unrolled, because the random numbers would take too many registers.
template <int columns, bool rows_are_keys>
struct KeptScores {
  static_assert(columns % 8 == 0 && columns <= 64);
  static constexpr int sharers = rows_are_keys ? 4 : 2;
  std::uint32_t words[sharers] = {};  ///< four bits per 8 columns
  int shift = 0;

  /// `row` and `column`: the first of each; `query_base`: offset of the head's queries in the mask.
  __device__ __forceinline__ void decide(const DropoutMask& mask, std::int64_t sample,
                                         std::int64_t query_base, std::int64_t row,
                                         std::int64_t column) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int group = lane / 4;
    const int pair_of = lane % 4;
    const std::uint32_t threshold = mask.threshold();
    // The share of this lane: half the rows of its pair, or one of two columns and half the rows.
    const int part = rows_are_keys ? group % 4 : pair_of % 2;
    const int half = rows_are_keys ? part / 2 : part;
    const std::int64_t my_row = row + group + 8 * half;
    std::uint32_t bits = 0;
#pragma unroll 1
    for (int j = 0; j < columns / 8; ++j) {
      const std::int64_t my_column = column + 8 * j + 2 * pair_of + (rows_are_keys ? part % 2 : 0);
      const std::int64_t query = query_base + (rows_are_keys ? my_column : my_row);
      const std::int64_t key = rows_are_keys ? my_row : my_column;
      const auto random = philox(
          mask.key, static_cast<std::uint64_t>(key / 4) | static_cast<std::uint64_t>(query) << 24,
          static_cast<std::uint64_t>(mask.first_sample + sample));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        bits |= static_cast<std::uint32_t>(random[static_cast<std::size_t>(i)] >= threshold)
                << (4 * j + i);
    }
    if constexpr (rows_are_keys) {
      shift = group % 4;
#pragma unroll
      for (int from = 0; from < sharers; ++from)
        words[from] = shuffle(bits, group / 4 * 16 + from * 4 + pair_of);
    } else {
      shift = pair_of % 2 * 2;
      const std::uint32_t other = shuffle_xor(bits, 1);
      words[0] = part == 0 ? bits : other;
      words[1] = part == 0 ? other : bits;
    }
  }

  /// True if accumulator i of 8-column group j is kept.
  __device__ __forceinline__ bool operator()(int j, int i) const {
    const std::uint32_t word = words[rows_are_keys ? i / 2 * 2 + i % 2 : i / 2];
    return (word >> (4 * j + (rows_are_keys ? 0 : i % 2) + shift) & 1u) != 0;
  }
};

}  // namespace sluice::cuda
