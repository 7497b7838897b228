#include "models/text/bpe/bpe_description.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

[[noreturn]] void refuse(const fs::path& file, const std::string& what) {
  fail(fmt::format("{} {}", file.string(), what), ErrorKind::usage);
}

}  // namespace

const Json& member(const Json& object, std::string_view name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

std::uint64_t id_of(const fs::path& file, const std::string& name, const Json& id) {
  if (!id.is_number_unsigned())
    refuse(file, fmt::format("gives the symbol {} the id {}, which is not a whole number from 0 up",
                             quote(name), shown(id)));
  return id.get<std::uint64_t>();
}

std::vector<BpeDescription::Symbol> symbols_of(const fs::path& file, const Json& vocabulary) {
  if (!vocabulary.is_object() || vocabulary.empty())
    refuse(file, "has no object that gives each symbol its id");
  std::vector<BpeDescription::Symbol> symbols;
  for (const auto& [name, id] : vocabulary.items())
    symbols.push_back({name, id_of(file, name, id)});
  return symbols;
}

BpeDescription::Merge parse_merge(const BpeDescription& description, std::string_view text,
                                  std::size_t place) {
  const auto space = text.find(' ');
  if (space == 0 || space >= text.size() - 1 || text.find(' ', space + 1) != text.npos)
    refuse(description.merges_file, fmt::format("{} {} is {}, which is not two symbols with a "
                                                "space between them",
                                                description.place_name, place, quote(text)));
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1)), place};
}

}  // namespace sluice
