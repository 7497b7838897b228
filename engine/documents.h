#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

/// The documents of tokens [B, T], of which a sequence may have several. Attention stays within a
/// document, and its positions count from its first token. So a document has the values that it
/// has alone.
struct Documents {
  /// Ascending, in [0, B * T); each sequence begins one. None: each sequence is one document.
  std::vector<std::int64_t> starts{};
  /// Position of each document's first token, if it continues an earlier part; none: 0.
  std::vector<std::int64_t> positions{};

  bool several() const { return !starts.empty(); }
  /// Returns those of `count` tokens from token `first` on, which begins a sequence.
  Documents part(std::int64_t first, std::int64_t count) const {
    Documents some;
    const auto begin = std::ranges::lower_bound(starts, first);
    for (auto start = begin; start != starts.end() && *start < first + count; ++start)
      some.starts.push_back(*start - first);
    return some;
  }

  /// Tokens that are computed as a tensor [sequences, length] of its own.
  struct Piece {
    std::int64_t first, sequences, length;
    std::int64_t position = 0;  ///< of each sequence's first token

    /// Returns these of tokens [B, T].
    Tensor of(const Tensor& tokens) const { return tokens.slice(first, {sequences, length}); }
    /// Returns these tokens' part of a tensor with `columns` elements for each token.
    Tensor of(const Tensor& x, std::int64_t columns) const {
      return x.slice(first * columns, {sequences, length, columns});
    }
  };
  /// Returns each document, or all of [sequences, length] at once if each sequence is one.
  std::vector<Piece> pieces(std::int64_t sequences, std::int64_t length) const {
    if (!several()) return {{0, sequences, length}};
    std::vector<Piece> all;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const std::int64_t end = i + 1 < starts.size() ? starts[i + 1] : sequences * length;
      all.push_back({starts[i], 1, end - starts[i], positions.empty() ? 0 : positions[i]});
    }
    return all;
  }
};

}  // namespace sluice
