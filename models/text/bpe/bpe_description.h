#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/bpe/bpe_tables.h"

namespace sluice {

// Parts that vocab.json with merges.txt and tokenizer.json have in common. Errors are
// ErrorKind::usage and begin with the file.

/// Returns the member `name` of an object; null if there is none.
const nlohmann::json& member(const nlohmann::json& object, std::string_view name);

/// Returns the id that a file gives the symbol `name`.
std::uint64_t id_of(const std::filesystem::path& file, const std::string& name,
                    const nlohmann::json& id);

/// Reads an object that gives each symbol its id.
std::vector<BpeDescription::Symbol> symbols_of(const std::filesystem::path& file,
                                               const nlohmann::json& vocabulary);

/// Parses a merge written as "left right".
BpeDescription::Merge parse_merge(const BpeDescription& description, std::string_view text,
                                  std::size_t place);

}  // namespace sluice
