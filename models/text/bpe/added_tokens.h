#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "models/text/bpe/bpe_tables.h"

namespace sluice {

/// Finds added tokens in text.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;

  struct Found {
    std::size_t at;
    const AddedToken* token;
  };
  /// Returns the first token in `text`, the longest one at its place; special ones only if
  /// `special`.
  std::optional<Found> find(std::string_view text, bool special) const;

 private:
  std::vector<AddedToken> tokens_;                                 ///< the longest first
  std::array<std::vector<const AddedToken*>, 256> by_first_byte_;  ///< in the same order
  bool any_ = false, any_ordinary_ = false;
};

}  // namespace sluice
