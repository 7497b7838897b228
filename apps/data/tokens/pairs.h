#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/tokens/token_source.h"

namespace sluice {

/// Marks of a token, added up. A mask is a file of tokens that are marks, one for each token of the
/// file beside it.
struct PairMark {
  static constexpr std::int32_t counts = 1;  ///< a target that counts: a token of a completion
  static constexpr std::int32_t begins = 2;  ///< the first token of a pair
};

/// Returns the path of the mask for a file of tokens: train.mask beside train.bin.
std::filesystem::path mask_of(const std::filesystem::path& tokens);
bool has_mask(const std::filesystem::path& tokens);

/// Pairs of a prompt and a completion, as `prepare_data --pairs` writes them. Each is a row: its
/// tokens, cut at the end if there are too many, then zeros. In a causal model nothing that counts
/// depends on what is behind it. Pairs of which nothing counts in a row are left out. Packed, a row
/// has as many pairs as fit, each a document of its own.
class Pairs final : public TokenSource {
 public:
  /// Inputs of a sequence, one less than the tokens of a row.
  struct Length {
    /// None: as the longest pair needs, in multiples of 8; packed: also up to 1024.
    std::optional<std::int64_t> given{};
    std::int64_t most = 0;  ///< if none is given
    bool pack = false;
  };
  /// Names for messages.
  struct Names {
    std::string tokens, mask;
  };

  /// Throws Error (usage) unless `mask` has a mark for every token.
  Pairs(std::unique_ptr<TokenSource> tokens, std::unique_ptr<TokenSource> mask,
        const Length& length, const Names& names);

  std::int64_t size() const override { return rows() * row_; }
  std::int64_t row() const override { return row_; }
  void pad_rows(std::int64_t row) override { row_ = std::max(row_, row); }
  void read(std::int64_t start, std::span<std::int32_t> out) const override;
  void read_counted(std::int64_t start, std::span<std::uint8_t> out) const override;
  void append_documents(std::int64_t start, std::int64_t first, std::int64_t length,
                        Documents& documents) const override;
  std::int64_t attended(std::int64_t length) const override;
  std::uint32_t checksum() const override;

  /// Throws Error (usage) if no pair is left. `name`: of the tokens.
  void require_some(const std::string& name) const;
  std::int64_t pairs() const { return static_cast<std::int64_t>(pairs_.size()); }
  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
  /// Returns "900 pairs of 61 tokens at most", and how many were cut or left out.
  std::string text() const;

 private:
  struct Pair {
    std::int64_t first, count;  ///< its tokens in the file
    std::int64_t target = 0;    ///< number of its first token that counts; 0: none does
  };
  /// Pairs of a row, and their tokens in it.
  struct Row {
    std::vector<std::size_t> pairs;
    std::int64_t filled = 0;
  };
  template <class Body>
  void for_each_part(std::int64_t start, std::size_t count, Body&& body) const;
  void find_pairs(const std::string& mask_name);
  void pack();
  std::int64_t tokens_in_row(std::size_t pair) const { return std::min(pairs_[pair].count, row_); }

  std::unique_ptr<TokenSource> tokens_, mask_;
  bool packs_;
  std::vector<Pair> pairs_;
  std::vector<Row> rows_;
  std::int64_t row_ = 0, longest_ = 0, cut_ = 0, left_out_ = 0;
};

/// Opens a file of tokens with the mask beside it; returns null if there is no mask.
std::unique_ptr<Pairs> open_pairs(const std::filesystem::path& tokens, std::int64_t vocab_size,
                                  const Pairs::Length& length);

}  // namespace sluice
