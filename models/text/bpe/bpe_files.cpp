#include "models/text/bpe/bpe_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/bpe/bpe_description.h"
#include "models/text/bpe/byte_alphabet.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view version_line = "#version: 0.2";

void read_merges_text(BpeDescription& description) {
  const std::string text = read_text_file(description.merges_file);
  std::string_view rest = text;
  for (std::size_t place = 1; !rest.empty(); ++place) {
    const auto end = rest.find('\n');
    auto line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool heading = place == 1 && line.starts_with("#version");
    if (!line.empty() && !heading)
      description.merges.push_back(parse_merge(description, line, place));
  }
}

}  // namespace

BpeTables read_bpe_files(const fs::path& vocabulary, const fs::path& merges) {
  BpeDescription description{vocabulary, merges, "line", {}, {}};
  description.symbols = symbols_of(vocabulary, read_json_file(vocabulary, max_text_file));
  read_merges_text(description);
  return check_bpe(description);
}

void require_gpt2_tokenizer(const fs::path& directory) {
  const fs::path config = directory / "tokenizer_config.json";
  if (!fs::exists(config)) return;
  const json root = read_json_file(config, max_text_file);
  const json& type = member(root, "tokenizer_class");
  if (!type.is_string() || type.get<std::string>().starts_with("GPT2")) return;
  fail(fmt::format("{} is not of a GPT-2 tokenizer: its \"tokenizer_class\" is {}, which splits "
                   "text otherwise",
                   config.string(), shown(type)),
       ErrorKind::usage);
}

void write_bpe_files(const fs::path& directory, const BpeTables& tables) {
  // The text is made by hand, since one JSON value would sort its keys alphabetically.
  std::string vocabulary;
  for (std::size_t id = 0; id < tables.symbols.size(); ++id)
    vocabulary += fmt::format("{}{}: {}", id == 0 ? "{" : ", ",
                              json(to_byte_alphabet(tables.symbols[id])).dump(-1, ' ', true), id);
  write_text_file(directory / "vocab.json", vocabulary + "}");

  const auto name = [&](std::int32_t id) {
    return to_byte_alphabet(tables.symbols[static_cast<std::size_t>(id)]);
  };
  std::string merges = fmt::format("{}\n", version_line);
  for (const auto& merge : tables.merges)
    merges += fmt::format("{} {}\n", name(merge.left), name(merge.right));
  write_text_file(directory / "merges.txt", merges);

  json config = {{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", false}};
  if (tables.end_of_text)
    for (const auto* role : {"bos_token", "eos_token", "unk_token"})
      config[role] = end_of_text_name;
  write_text_file(directory / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace sluice
