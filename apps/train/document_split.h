#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sluice {

/// What decides the side of a document: its text alone, not its name or place.
struct DocumentFacts {
  std::uint64_t bytes = 0;
  std::uint32_t sum = 0;  ///< CRC-32 of the text
};
DocumentFacts facts_of(std::string_view text);

/// With fewer documents than this the border is drawn by bytes, through a document if need be.
inline constexpr std::size_t few_documents = 10;

/// How many bytes of each document, from its beginning, are for training; the rest is for
/// validation. Of many documents each is whole on one side: in an order that `seed` and their texts
/// give, those that still fit into the validation part of 1 - `fraction` of all bytes are drawn,
/// or the smallest if none does. Of few the first `fraction` of all bytes is for training; the
/// border may lie inside a character, see character_border().
std::vector<std::uint64_t> training_bytes(std::span<const DocumentFacts> documents, double fraction,
                                          std::uint64_t seed);

/// The last place up to `at` that is not inside a UTF-8 character.
std::size_t character_border(std::string_view text, std::size_t at);

}  // namespace sluice
