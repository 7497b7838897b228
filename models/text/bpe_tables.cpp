#include "models/text/bpe_tables.h"

#include <fmt/format.h>

#include <unordered_map>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/byte_alphabet.h"

namespace sluice {
namespace {

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
  IdOfName ids;
  tables.symbols.resize(description.symbols.size());
  for (const auto& [name, id] : description.symbols) {
    if (id >= tables.symbols.size())
      refuse(file, "gives the symbol {} the id {}, but its {} symbols need the ids 0 to {}",
             quote(name), id, tables.symbols.size(), tables.symbols.size() - 1);
    auto bytes = from_byte_alphabet(name);
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
    if (found == ids.end())
      refuse(description.vocabulary_file, "has no symbol for the byte {}, which is written {}",
             byte, quote(name));
    tables.byte_symbol[byte] = found->second;
  }
}

void take_merges(const BpeDescription& description, const IdOfName& ids, BpeTables& tables) {
  for (const auto& [left, right, place] : description.merges) {
    const auto refuse_merge = [&, place = place](const std::string& why) {
      refuse(description.merges_file, "{} {} {}", description.place_name, place, why);
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
  check_all_are_made(description, tables);
  if (const auto found = ids.find(end_of_text_name); found != ids.end())
    tables.end_of_text = found->second;
  return tables;
}

}  // namespace sluice
