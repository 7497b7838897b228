#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/text/bpe/pre_tokenizer.h"

namespace sluice {

/// Two neighbouring symbols and the symbol that replaces them.
struct BpeMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

/// The merges in order of preference, with a lookup from a pair of symbols to its rank.
class BpeMerges {
 public:
  BpeMerges() = default;

  /// Adds the least preferred merge so far. Returns false and adds nothing if the pair has a merge.
  bool add(const BpeMerge& merge);

  std::optional<std::size_t> rank(std::int32_t left, std::int32_t right) const;
  const BpeMerge& operator[](std::size_t rank) const { return merges_[rank]; }
  std::size_t size() const { return merges_.size(); }
  auto begin() const { return merges_.begin(); }
  auto end() const { return merges_.end(); }

 private:
  std::vector<BpeMerge> merges_;
  std::unordered_map<std::uint64_t, std::size_t> rank_of_pair_;
};

/// A token that stands for a fixed text, whatever the rule says about that text.
struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool special = true;      ///< such as "<|endoftext|>": ordinary text may contain its name
  bool normalized = false;  ///< it is found in normalized text, else before it is normalized
};

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
  /// Names of symbols that are added tokens, written as they are and not in the byte alphabet.
  std::vector<std::string> added{};
  bool needs_all_bytes = true;  ///< a byte without a symbol is a fault
  bool whole_pieces = false;    ///< see BpeTables
};

/// The same tables, checked and with ids in place of names: the data that encode and decode need.
struct BpeTables {
  std::vector<std::string> symbols;             ///< the bytes that each id stands for
  std::array<std::int32_t, 256> byte_symbol{};  ///< the id of each single byte; -1: none
  BpeMerges merges;
  std::optional<std::int32_t> end_of_text;  ///< the id of the token that ends a text
  std::vector<AddedToken> added{};
  bool nfc = false;  ///< text is first brought into Unicode's normalization form C
  std::vector<std::string> split{gpt2_split};  ///< see PreTokenizer
  bool whole_pieces = false;  ///< a piece that is a symbol needs no merges ("ignore_merges")
  std::vector<std::int32_t> begin{};      ///< ids that begin every text
  std::optional<std::int32_t> unknown{};  ///< stands for bytes without a symbol
  /// The texts of the files of a tokenizer that is not GPT-2's by their names, to be written again;
  /// else empty.
  std::map<std::string, std::string> files{};

  bool is_gpt2() const { return files.empty(); }
};

/// Fails (usage), naming file and value, in these cases: the ids are not 0, 1, 2, ... each once; a
/// name is not in the byte alphabet; one of the 256 bytes has no symbol though it needs one; a
/// merge has an unknown symbol or result, or comes twice; no merge makes a symbol that is neither
/// an added token nor a `<special>` or `[special]` one, as happens if the list of merges was cut
/// short.
/// "<|endoftext|>" is an added token wherever it is a symbol, and ends a text.
BpeTables check_bpe(const BpeDescription& description);

inline constexpr std::string_view end_of_text_name = "<|endoftext|>";

/// Applies merges: always the most preferred pair that is present, the leftmost of equal ones. A
/// piece of n symbols takes O(n log n). Used by one thread; it keeps its memory between pieces.
class BpeMerger {
 public:
  /// `merges` must outlive this object.
  explicit BpeMerger(const BpeMerges& merges) : merges_(merges) {}

  /// Merges symbols[first...] as one piece, in place, shortening `symbols`.
  void merge_tail(std::vector<std::int32_t>& symbols, std::size_t first);

 private:
  /// A pair that could be merged; it is stale once either of its symbols has changed.
  struct Candidate {
    std::size_t rank;
    std::size_t at;  // index of the left symbol
    auto operator<=>(const Candidate&) const = default;
  };
  struct Neighbours {
    std::size_t previous;
    std::size_t next;
  };
  void propose(std::size_t left, std::size_t right);

  const BpeMerges& merges_;
  std::int32_t* piece_ = nullptr;       // the symbols of the piece; merged-away ones are -1
  std::vector<Neighbours> neighbours_;  // the nearest remaining neighbours of every symbol
  std::vector<Candidate> candidates_;   // a heap with the most preferred candidate in front
};

}  // namespace sluice
