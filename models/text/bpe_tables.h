#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/bpe_merger.h"

namespace sluice {

/// A byte-level BPE tokenizer as its files describe it, not yet checked. Symbol names are in the
/// byte alphabet. The file names, merge places and `place_name` are only for messages.
struct BpeDescription {
  struct Symbol {
    std::string name;
    std::uint64_t id;
  };
  struct Merge {
    std::string left;
    std::string right;
    std::size_t place;
  };
  std::filesystem::path vocabulary_file;
  std::filesystem::path merges_file;
  std::string_view place_name;  ///< unit of Merge::place: "line" or "merge"
  std::vector<Symbol> symbols;
  std::vector<Merge> merges;  ///< most preferred first
};

/// The same tables, checked and with ids in place of names: the data that encode and decode need.
struct BpeTables {
  std::vector<std::string> symbols;             ///< the bytes that each id stands for
  std::array<std::int32_t, 256> byte_symbol{};  ///< the id of each single byte
  BpeMerges merges;
  std::optional<std::int32_t> end_of_text;  ///< the id of "<|endoftext|>"
};

/// Fails (usage), naming file and value, in these cases: the ids are not 0, 1, 2, ... each once; a
/// name is not in the byte alphabet; one of the 256 bytes has no symbol; a merge has an unknown
/// symbol or result, or comes twice; no merge makes a symbol that is not a <special> or [special]
/// one, as happens if the list of merges was cut short.
BpeTables check_bpe(const BpeDescription& description);

inline constexpr std::string_view end_of_text_name = "<|endoftext|>";

}  // namespace sluice
