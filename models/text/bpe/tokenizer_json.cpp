#include "models/text/bpe/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/io/file.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/bpe/bpe_description.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A tokenizer.json, with sentences about what is wrong with it.
class Document {
 public:
  Document(Json root, fs::path file) : root_(std::move(root)), file_(std::move(file)) {}

  const fs::path& file() const { return file_; }
  const Json& at(std::string_view name) const { return member(root_, name); }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(fmt::format("{} {}", file_.string(), what), ErrorKind::usage);
  }
  /// Checks that a member of the part `place` has one of the values that are supported.
  void require(const Json& part, std::string_view place, std::string_view name,
               std::initializer_list<Json> accepted) const {
    const Json& value = member(part, name);
    if (std::find(accepted.begin(), accepted.end(), value) == accepted.end())
      refuse(fmt::format("is no tokenizer that this program reads: its {} has \"{}\": {}", place,
                         name, shown(value)));
  }

 private:
  Json root_;
  fs::path file_;
};

void read_merges(const Document& document, BpeDescription& description) {
  const Json& merges = member(document.at("model"), "merges");
  if (!merges.is_array()) document.refuse("has no list \"merges\" in its model");
  for (const Json& entry : merges) {
    const auto place = description.merges.size() + 1;
    if (entry.is_string()) {
      description.merges.push_back(
          parse_merge(description, entry.get_ref<const std::string&>(), place));
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      description.merges.push_back({entry[0], entry[1], place});
    } else {
      document.refuse(fmt::format("merge {} is {}, which is not two symbols", place, shown(entry)));
    }
  }
}

/// Reads the added tokens, of which the model's own vocabulary may lack some. Their ids are set by
/// check_bpe().
std::vector<AddedToken> read_added_tokens(const Document& document, BpeDescription& description) {
  std::vector<AddedToken> added;
  const Json& tokens = document.at("added_tokens");
  if (!tokens.is_null() && !tokens.is_array())
    document.refuse("has \"added_tokens\" that are no list");
  for (const Json& token : tokens) {
    const Json& content = member(token, "content");
    if (!content.is_string() || content.get_ref<const std::string&>().empty())
      document.refuse("has an added token without \"content\"");
    const auto name = content.get<std::string>();
    const auto id = id_of(document.file(), name, member(token, "id"));
    const Json& known = member(member(document.at("model"), "vocab"), name);
    if (known.is_null())
      description.symbols.push_back({name, id});
    else if (known != id)
      document.refuse(fmt::format("gives the added token {} the id {}, and {} in its vocabulary",
                                  quote(name), id, shown(known)));
    for (const char* const flag : {"lstrip", "rstrip", "single_word"})
      document.require(token, fmt::format("added token {}", quote(name)), flag, {nullptr, false});
    description.added.push_back(name);
    added.push_back({.text = name,
                     .special = member(token, "special") != false,
                     .normalized = member(token, "normalized") == true});
  }
  return added;
}

/// Returns a regular expression of Hugging Face's, which is Oniguruma's, in PCRE2's syntax. There
/// \s counts U+180E, which has not been white space since Unicode 6.3. What else the two understand
/// differently is refused.
std::string pcre2_pattern(const Document& document, const std::string& regex) {
  std::string pattern;
  for (std::size_t at = 0; at < regex.size(); ++at) {
    const char next = at + 1 < regex.size() ? regex[at + 1] : '\0';
    if (regex.compare(at, 2, "&&") == 0 || (regex[at] == '\\' && (next == 'h' || next == 'H')))
      document.refuse(fmt::format("splits text by {}, of which {} means something else here",
                                  quote(regex), quote(regex.substr(at, 2))));
    if (regex[at] != '\\' || next == '\0') {
      pattern += regex[at];
      continue;
    }
    ++at;
    if (next == 's' || next == 'S')
      pattern += next == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    else
      (pattern += '\\') += next;
  }
  return pattern;
}

/// Adds the expressions by which a pre-tokenizer splits text.
void add_split(const Document& document, const Json& step, bool last,
               std::vector<std::string>& split) {
  constexpr std::string_view place = "pre_tokenizer";
  const Json& type = member(step, "type");
  if (type == "Sequence" && last) {
    const Json& steps = member(step, "pretokenizers");
    if (!steps.is_array() || steps.empty()) document.refuse("has a sequence of no pre-tokenizers");
    for (const Json& inner : steps)
      add_split(document, inner, &inner == &steps.back(), split);
  } else if (type == "ByteLevel" && last) {
    document.require(step, place, "add_prefix_space", {nullptr, false});
    document.require(step, place, "use_regex", {nullptr, true, false});
    if (member(step, "use_regex") != false) split.push_back(gpt2_split);
  } else if (type == "Digits" && !last) {
    document.require(step, place, "individual_digits", {true, false});
    split.emplace_back(member(step, "individual_digits") == true ? "\\p{N}" : "\\p{N}+");
  } else if (type == "Split" && !last) {
    document.require(step, place, "behavior", {"Isolated"});
    document.require(step, place, "invert", {nullptr, false});
    const Json& regex = member(member(step, "pattern"), "Regex");
    if (!regex.is_string()) document.refuse("has a split without a \"Regex\" as its pattern");
    split.push_back(pcre2_pattern(document, regex.get_ref<const std::string&>()));
  } else {
    document.require(
        step, place, "type",
        {last ? Json("ByteLevel") : Json("Split"), last ? Json("Sequence") : "Digits"});
    document.refuse(fmt::format("has {} where its pre-tokenizer cannot have it", shown(type)));
  }
}

/// Adds the ids of the tokens that a post-processor puts before every text.
void add_begin(const Document& document, const Json& step, BpeTables& tables) {
  constexpr std::string_view place = "post_processor";
  const Json& type = member(step, "type");
  if (step.is_null() || type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const Json& inner : member(step, "processors"))
      add_begin(document, inner, tables);
    return;
  }
  document.require(step, place, "type", {"TemplateProcessing"});
  bool behind = false;  // the text
  for (const Json& part : member(step, "single")) {
    const Json& token = member(part, "SpecialToken");
    if (token.is_null()) {
      behind = true;
      continue;
    }
    const auto known = std::ranges::find_if(
        tables.added, [&](const AddedToken& added) { return member(token, "id") == added.text; });
    if (behind || known == tables.added.end())
      document.refuse(fmt::format("puts {} {} every text, which this program does not do",
                                  shown(member(token, "id")), behind ? "behind" : "before"));
    tables.begin.push_back(known->id);
  }
}

/// Returns the name of the token to which a file gives a role; empty: none.
std::string token_of(const Json& config, std::string_view role) {
  const Json& token = member(config, role);
  const Json& name = token.is_object() ? member(token, "content") : token;
  return name.is_string() ? name.get<std::string>() : std::string();
}

/// Requires that tokenizer_config.json adds no token to those of tokenizer.json.
void require_no_more_tokens(const Json& config, const BpeTables& tables, const fs::path& file) {
  for (const auto& [id, token] : member(config, "added_tokens_decoder").items()) {
    const Json& content = member(token, "content");
    const bool known = std::ranges::any_of(
        tables.added, [&](const AddedToken& added) { return content == added.text; });
    if (!known)
      fail(fmt::format("{} adds the token {}, which tokenizer.json beside it does not have",
                       file.string(), shown(content)),
           ErrorKind::usage);
  }
}

}  // namespace

BpeTables read_tokenizer_json(const fs::path& file) {
  TokenizerFiles files{{"tokenizer.json", read_text_file(file)}};
  // generation_config.json is carried with the tokenizer, since it says by ids what ends an answer.
  for (const char* const name : {"tokenizer_config.json", "special_tokens_map.json",
                                 "chat_template.jinja", "generation_config.json"})
    if (const fs::path beside = file.parent_path() / name; fs::exists(beside))
      files.emplace(name, read_text_file(beside));
  return parse_tokenizer_json(std::move(files), file);
}

BpeTables parse_tokenizer_json(TokenizerFiles files, const fs::path& file) {
  const Document document(parse_json(files.at("tokenizer.json"), file.string()), file);
  const auto beside = [&](const char* name) {
    const auto found = files.find(name);
    if (found == files.end()) return Json();
    return parse_json(found->second, (file.parent_path() / name).string());
  };
  const Json config = beside("tokenizer_config.json"), names = beside("special_tokens_map.json");
  const Json& model = document.at("model");
  document.require(model, "model", "type", {nullptr, "BPE"});
  document.require(model, "model", "byte_fallback", {nullptr, false});
  document.require(model, "model", "dropout", {nullptr, 0.0});
  document.require(model, "model", "fuse_unk", {nullptr, false});
  document.require(model, "model", "ignore_merges", {nullptr, false, true});
  document.require(model, "model", "continuing_subword_prefix", {nullptr, ""});
  document.require(model, "model", "end_of_word_suffix", {nullptr, ""});
  document.require(document.at("normalizer"), "normalizer", "type", {nullptr, "NFC"});

  std::vector<std::string> split;
  add_split(document, document.at("pre_tokenizer"), true, split);
  BpeDescription description{file, file, "merge", symbols_of(file, member(model, "vocab")), {}};
  description.needs_all_bytes = false;
  description.whole_pieces = member(model, "ignore_merges") == true;
  const std::vector<AddedToken> added = read_added_tokens(document, description);
  read_merges(document, description);
  BpeTables tables = check_bpe(description);
  tables.split = std::move(split);
  tables.nfc = member(document.at("normalizer"), "type") == "NFC";
  for (std::size_t i = 0; i < added.size(); ++i) {
    tables.added[i].special = added[i].special;
    tables.added[i].normalized = added[i].normalized;
  }
  require_no_more_tokens(config, tables, file.parent_path() / "tokenizer_config.json");
  add_begin(document, document.at("post_processor"), tables);
  const auto named = [&](const std::string& name) -> std::optional<std::int32_t> {
    const auto found = std::ranges::find(tables.symbols, name);
    if (name.empty() || found == tables.symbols.end()) return std::nullopt;
    return static_cast<std::int32_t>(found - tables.symbols.begin());
  };
  const std::string end = token_of(config, "eos_token");
  if (const auto id = named(end.empty() ? token_of(names, "eos_token") : end))
    tables.end_of_text = id;
  const Json& unknown = member(model, "unk_token");
  if (unknown.is_string()) tables.unknown = named(unknown.get<std::string>());
  try {
    const PreTokenizer compiles(tables.split);
  } catch (const Error& error) {
    document.refuse(fmt::format("cannot be used: {}", error.what()));
  }
  const bool gpt2 = tables.split == std::vector<std::string>{gpt2_split} && !tables.nfc &&
                    !tables.whole_pieces && tables.begin.empty() && !tables.unknown &&
                    std::ranges::find(tables.byte_symbol, -1) == tables.byte_symbol.end() &&
                    (tables.added.empty() || (tables.added.size() == 1 && tables.end_of_text &&
                                              tables.added.front().text == end_of_text_name &&
                                              tables.end_of_text == tables.added.front().id));
  if (!gpt2) tables.files = std::move(files);
  return tables;
}

}  // namespace sluice
