#include "models/text/bpe_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/byte_alphabet.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view version_line = "#version: 0.2";

[[noreturn]] void refuse(const fs::path& file, const std::string& what) {
  fail(fmt::format("{} {}", file.string(), what), ErrorKind::usage);
}

/// Returns the member `name` of an object; null if there is none.
const json& member(const json& object, std::string_view name) {
  static const json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

/// Formats `value` for a message.
std::string show(const json& value) {
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  return value.is_structured() ? value.type_name() : value.dump();
}

std::uint64_t whole_number(const fs::path& file, const std::string& name, const json& id) {
  if (!id.is_number_unsigned())
    refuse(file, fmt::format("gives the symbol {} the id {}, which is not a whole number from 0 up",
                             quote(name), show(id)));
  return id.get<std::uint64_t>();
}

std::vector<BpeDescription::Symbol> symbols_of(const fs::path& file, const json& vocabulary) {
  if (!vocabulary.is_object() || vocabulary.empty())
    refuse(file, "has no object that gives each symbol its id");
  std::vector<BpeDescription::Symbol> symbols;
  for (const auto& [name, id] : vocabulary.items())
    symbols.push_back({name, whole_number(file, name, id)});
  return symbols;
}

/// Parses a merge written as "left right".
BpeDescription::Merge parse_merge(const BpeDescription& description, std::string_view text,
                                  std::size_t place) {
  const auto space = text.find(' ');
  if (space == 0 || space >= text.size() - 1 || text.find(' ', space + 1) != text.npos)
    refuse(description.merges_file, fmt::format("{} {} is {}, which is not two symbols with a "
                                                "space between them",
                                                description.place_name, place, quote(text)));
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1)), place};
}

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

void read_merges_json(BpeDescription& description, const json& merges) {
  if (!merges.is_array()) refuse(description.merges_file, "has no list \"merges\" in its model");
  for (const auto& entry : merges) {
    const auto place = description.merges.size() + 1;
    if (entry.is_string()) {
      description.merges.push_back(
          parse_merge(description, entry.get_ref<const std::string&>(), place));
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      description.merges.push_back({entry[0], entry[1], place});
    } else {
      refuse(description.merges_file,
             fmt::format("merge {} is {}, which is not two symbols", place, show(entry)));
    }
  }
}

/// Refuses settings that would make ids differ from GPT-2's for the same vocabulary and merges.
void check_is_gpt2(const fs::path& file, const json& root) {
  const auto require = [&](std::string_view place, std::string_view name,
                           std::initializer_list<json> accepted) {
    const auto& value = member(member(root, place), name);
    if (std::find(accepted.begin(), accepted.end(), value) == accepted.end())
      refuse(file, fmt::format("is not a GPT-2 tokenizer: its {} has \"{}\": {}", place, name,
                               show(value)));
  };
  require("model", "type", {nullptr, "BPE"});
  require("model", "byte_fallback", {nullptr, false});
  require("model", "ignore_merges", {nullptr, false});
  require("model", "continuing_subword_prefix", {nullptr, ""});
  require("model", "end_of_word_suffix", {nullptr, ""});
  require("pre_tokenizer", "type", {"ByteLevel"});
  require("pre_tokenizer", "add_prefix_space", {nullptr, false});
  require("pre_tokenizer", "use_regex", {nullptr, true});
  require("normalizer", "type", {nullptr});
}

/// Adds the tokens that the model's own vocabulary lacks.
void read_added_tokens(BpeDescription& description, const json& vocabulary, const json& tokens) {
  const auto& file = description.vocabulary_file;
  if (!tokens.is_null() && !tokens.is_array())
    refuse(file, "has \"added_tokens\" that are no list");
  for (const auto& token : tokens) {
    const auto& content = member(token, "content");
    if (!content.is_string()) refuse(file, "has an added token without \"content\"");
    const auto name = content.get<std::string>();
    const auto id = whole_number(file, name, member(token, "id"));
    const auto& known = member(vocabulary, name);
    if (known.is_null())
      description.symbols.push_back({name, id});
    else if (known != id)
      refuse(file, fmt::format("gives the added token {} the id {}, and {} in its vocabulary",
                               quote(name), id, show(known)));
  }
}

}  // namespace

BpeTables read_bpe_files(const fs::path& vocabulary, const fs::path& merges) {
  BpeDescription description{vocabulary, merges, "line", {}, {}};
  description.symbols = symbols_of(vocabulary, read_json_file(vocabulary, max_text_file));
  read_merges_text(description);
  return check_bpe(description);
}

BpeTables read_tokenizer_json(const fs::path& file) {
  const auto root = read_json_file(file, max_text_file);
  check_is_gpt2(file, root);
  const auto& model = member(root, "model");
  const auto& vocabulary = member(model, "vocab");
  BpeDescription description{file, file, "merge", {}, {}};
  description.symbols = symbols_of(file, vocabulary);
  read_added_tokens(description, vocabulary, member(root, "added_tokens"));
  read_merges_json(description, member(model, "merges"));
  return check_bpe(description);
}

void require_gpt2_tokenizer(const fs::path& directory) {
  const fs::path whole = directory / "tokenizer.json", config = directory / "tokenizer_config.json";
  if (fs::exists(whole)) check_is_gpt2(whole, read_json_file(whole, max_text_file));
  if (!fs::exists(config)) return;
  const json root = read_json_file(config, max_text_file);
  const json& type = member(root, "tokenizer_class");
  if (!type.is_string() || type.get<std::string>().starts_with("GPT2")) return;
  // Transformers writes these names for every tokenizer that tokenizer.json describes.
  if (fs::exists(whole) && (type == "PreTrainedTokenizerFast" || type == "TokenizersBackend"))
    return;
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
