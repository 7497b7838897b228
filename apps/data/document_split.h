#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sluice {

/// The facts that decide whether a document is for training: its text alone, not name or place.
struct DocumentFacts {
  std::uint64_t bytes = 0;
  std::uint32_t sum = 0;  ///< CRC-32 of the text
};
DocumentFacts facts_of(std::string_view text);

/// A split of fewer documents than this is by bytes and may cut a document.
inline constexpr std::size_t few_documents = 10;

/// Returns how many bytes of each document, from its beginning, are for training; the rest is for
/// validation. Many documents stay whole: in an order drawn from `seed` and their texts, those that
/// still fit into 1 - `fraction` of all bytes go to validation, or the smallest if none fits. Of
/// few documents the first `fraction` of all bytes is for training; the cut may lie inside a
/// character, see character_border().
std::vector<std::uint64_t> training_bytes(std::span<const DocumentFacts> documents, double fraction,
                                          std::uint64_t seed);
/// The same for pairs, which all stay whole, one of them for training.
std::vector<std::uint64_t> training_pairs(std::span<const DocumentFacts> pairs, double fraction,
                                          std::uint64_t seed);

/// Returns the last position up to `at` that is not inside a UTF-8 character.
std::size_t character_border(std::string_view text, std::size_t at);

}  // namespace sluice
