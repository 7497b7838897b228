#include "models/text/bpe/bpe_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <set>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/bpe/byte_alphabet.h"

namespace sluice {
namespace {

constexpr std::int32_t gone = -1;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

using IdOfName = std::unordered_map<std::string_view, std::int32_t>;

template <class... Values>
[[noreturn]] void refuse(const std::filesystem::path& file,
                         fmt::format_string<const Values&...> message, const Values&... values) {
  fail(fmt::format("{} {}", file.string(), fmt::format(message, values...)), ErrorKind::usage);
}

/// Fills `tables.symbols`. There are as many ids as symbols, each in range and none twice, so no id
/// is missing.
IdOfName take_symbols(const BpeDescription& description, BpeTables& tables) {
  const auto& file = description.vocabulary_file;
  const std::set<std::string_view> added(description.added.begin(), description.added.end());
  IdOfName ids;
  tables.symbols.resize(description.symbols.size());
  for (const auto& [name, id] : description.symbols) {
    if (id >= tables.symbols.size())
      refuse(file, "gives the symbol {} the id {}, but its {} symbols need the ids 0 to {}",
             quote(name), id, tables.symbols.size(), tables.symbols.size() - 1);
    auto bytes = added.contains(name) ? name : from_byte_alphabet(name);
    if (!bytes || bytes->empty())
      refuse(file, "has the symbol {}, which is not written in GPT-2's 256 byte characters",
             quote(name));
    if (!tables.symbols[id].empty())
      refuse(file, "gives the id {} to the symbol {} and to another one", id, quote(name));
    tables.symbols[id] = std::move(*bytes);
    if (!ids.emplace(name, static_cast<std::int32_t>(id)).second)
      refuse(file, "has the symbol {} twice", quote(name));
  }
  return ids;
}

void take_bytes(const BpeDescription& description, const IdOfName& ids, BpeTables& tables) {
  for (std::size_t byte = 0; byte < tables.byte_symbol.size(); ++byte) {
    const auto name = to_byte_alphabet(std::string(1, static_cast<char>(byte)));
    const auto found = ids.find(name);
    if (found == ids.end() && !description.needs_all_bytes) {
      tables.byte_symbol[byte] = -1;
      continue;
    }
    if (found == ids.end())
      refuse(description.vocabulary_file, "has no symbol for the byte {}, which is written {}",
             byte, quote(name));
    tables.byte_symbol[byte] = found->second;
  }
}

void take_merges(const BpeDescription& description, const IdOfName& ids, BpeTables& tables) {
  for (const auto& [left, right, place] : description.merges) {
    const auto refuse_merge = [&, at = place](const std::string& why) {
      refuse(description.merges_file, "{} {} {}", description.place_name, at, why);
    };
    const auto id = [&](const std::string& name) {
      const auto found = ids.find(name);
      if (found == ids.end())
        refuse_merge(fmt::format("needs the symbol {}, which {} does not have", quote(name),
                                 description.vocabulary_file.string()));
      return found->second;
    };
    if (!tables.merges.add({id(left), id(right), id(left + right)}))
      refuse_merge(fmt::format("merges {} and {} a second time", quote(left), quote(right)));
  }
}

bool is_special(std::string_view symbol) {
  return (symbol.front() == '<' && symbol.back() == '>') ||
         (symbol.front() == '[' && symbol.back() == ']');
}

void check_all_are_made(const BpeDescription& description, const BpeTables& tables) {
  std::vector<bool> made(tables.symbols.size());
  for (const AddedToken& token : tables.added)
    made[static_cast<std::size_t>(token.id)] = true;
  for (const auto& merge : tables.merges)
    made[static_cast<std::size_t>(merge.result)] = true;
  for (std::size_t id = 0; id < made.size(); ++id) {
    const auto& symbol = tables.symbols[id];
    if (!made[id] && symbol.size() > 1 && !is_special(symbol))
      refuse(description.merges_file,
             "has no merge that makes the symbol {}, id {}: is its list of merges cut short?",
             quote(symbol), id);
  }
}

}  // namespace

BpeTables check_bpe(const BpeDescription& description) {
  BpeTables tables;
  const auto ids = take_symbols(description, tables);
  take_bytes(description, ids, tables);
  take_merges(description, ids, tables);
  for (const std::string& name : description.added)
    tables.added.push_back({name, ids.at(name)});
  if (const auto found = ids.find(end_of_text_name); found != ids.end()) {
    tables.end_of_text = found->second;
    if (std::ranges::find(description.added, end_of_text_name) == description.added.end())
      tables.added.push_back({std::string(end_of_text_name), found->second});
  }
  tables.whole_pieces = description.whole_pieces;
  if (!tables.whole_pieces) check_all_are_made(description, tables);
  return tables;
}

bool BpeMerges::add(const BpeMerge& merge) {
  if (!rank_of_pair_.try_emplace(pair_key(merge.left, merge.right), merges_.size()).second)
    return false;
  merges_.push_back(merge);
  return true;
}

std::optional<std::size_t> BpeMerges::rank(std::int32_t left, std::int32_t right) const {
  const auto found = rank_of_pair_.find(pair_key(left, right));
  if (found == rank_of_pair_.end()) return std::nullopt;
  return found->second;
}

void BpeMerger::propose(std::size_t left, std::size_t right) {
  const auto rank = merges_.rank(piece_[left], piece_[right]);
  if (!rank) return;
  candidates_.push_back({*rank, left});
  std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
}

void BpeMerger::merge_tail(std::vector<std::int32_t>& symbols, std::size_t first) {
  const std::size_t count = symbols.size() - first;
  if (count < 2) return;
  piece_ = symbols.data() + first;

  // `count` stands for "none" at either end.
  neighbours_.resize(count);
  for (std::size_t at = 0; at < count; ++at)
    neighbours_[at] = {at == 0 ? count : at - 1, at + 1};
  for (std::size_t at = 0; at + 1 < count; ++at)
    propose(at, at + 1);

  while (!candidates_.empty()) {
    const auto [rank, at] = candidates_.front();
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    candidates_.pop_back();

    const BpeMerge& merge = merges_[rank];
    const std::size_t right = neighbours_[at].next;
    if (piece_[at] != merge.left || right == count || piece_[right] != merge.right) continue;
    piece_[at] = merge.result;
    piece_[right] = gone;

    const std::size_t next = neighbours_[at].next = neighbours_[right].next;
    if (next != count) {
      neighbours_[next].previous = at;
      propose(at, next);
    }
    const std::size_t previous = neighbours_[at].previous;
    if (previous != count) propose(previous, at);
  }
  symbols.erase(
      std::remove(symbols.end() - static_cast<std::ptrdiff_t>(count), symbols.end(), gone),
      symbols.end());
}

}  // namespace sluice
