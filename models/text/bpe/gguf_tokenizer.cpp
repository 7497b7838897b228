#include "models/text/bpe/gguf_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/bpe/bpe_description.h"
#include "models/text/bpe/bpe_tokenizer.h"
#include "models/text/bpe/tokenizer_json.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

[[noreturn]] void refuse(const GgufReader& reader, const std::string& what) {
  fail(fmt::format("{} {}", reader.path().string(), what), ErrorKind::usage);
}

/// Kinds of tokens, as llama.cpp numbers them.
constexpr int control = 3, user_defined = 4;

/// Returns the strings of a key's list.
const Json& list(const GgufReader& reader, const char* key) {
  const Json& value = member(reader.metadata(), key);
  if (!value.is_array()) refuse(reader, fmt::format("has no list {}", quote(key)));
  return value;
}

Ordered byte_level(bool splits) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", splits}};
}

/// llama.cpp's names of the split of Llama 3, for which it uses whole pieces and, unless the file
/// says otherwise, the token that begins a text.
bool is_llama3(const Json& split) {
  return split == "llama-bpe" || split == "llama3" || split == "llama-v3";
}

/// Returns the pre-tokenizer of tokenizer.json that llama.cpp's name of a split stands for.
Ordered pre_tokenizer(const GgufReader& reader) {
  const Json& name = member(reader.metadata(), "tokenizer.ggml.pre");
  if (name == "gpt-2") return byte_level(true);
  const auto sequence = [](const Ordered& first, bool byte_level_splits) {
    return Ordered{{"type", "Sequence"},
                   {"pretokenizers", Ordered::array({first, byte_level(byte_level_splits)})}};
  };
  if (name == "smollm") return sequence({{"type", "Digits"}, {"individual_digits", true}}, true);
  // These two differ in how many digits are a piece.
  if (is_llama3(name) || name == "qwen2") {
    const std::string regex =
        fmt::format(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}|)"
                    R"( ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                    is_llama3(name) ? "{1,3}" : "");
    return sequence({{"type", "Split"},
                     {"pattern", {{"Regex", regex}}},
                     {"behavior", "Isolated"},
                     {"invert", false}},
                    false);
  }
  refuse(reader, fmt::format("has a tokenizer with the split {}; only \"gpt-2\", \"smollm\", "
                             "\"llama-bpe\" and \"qwen2\" are supported",
                             shown(name)));
}

}  // namespace

std::unique_ptr<Tokenizer> gguf_tokenizer(const GgufReader& reader) {
  const Json& all = reader.metadata();
  if (member(all, "tokenizer.ggml.model") != "gpt2")
    refuse(reader, fmt::format("has a tokenizer of kind {}; only byte-level BPE, \"gpt2\", is "
                               "supported",
                               shown(member(all, "tokenizer.ggml.model"))));
  const Json& split = member(all, "tokenizer.ggml.pre");
  const Json &tokens = list(reader, "tokenizer.ggml.tokens"),
             &types = list(reader, "tokenizer.ggml.token_type"),
             &merges = list(reader, "tokenizer.ggml.merges");
  if (types.size() != tokens.size())
    refuse(reader, fmt::format("has {} tokens and the types of {}", tokens.size(), types.size()));
  Ordered::object_t vocabulary;  // appended to, since looking up every name would be slow
  std::set<std::string> names;
  Ordered added = Ordered::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].is_string()) refuse(reader, fmt::format("has a token {} without a name", id));
    const auto name = tokens[id].get<std::string>();
    if (!names.insert(name).second)
      refuse(reader, fmt::format("has the token {} twice", quote(name)));
    vocabulary.push_back({name, id});
    if (types[id] != control && types[id] != user_defined) continue;
    added.push_back({{"id", id},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", types[id] == control}});
  }
  const auto token = [&](const char* role) -> Ordered {
    const Json& id = member(all, fmt::format("tokenizer.ggml.{}_token_id", role));
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= tokens.size()) return nullptr;
    return tokens[id.get<std::size_t>()].get<std::string>();
  };
  Ordered post_processor;
  const Json& adds_begin = member(all, "tokenizer.ggml.add_bos_token");
  if ((adds_begin.is_null() ? is_llama3(split) : adds_begin == true) && token("bos").is_string()) {
    const auto first = token("bos").get<std::string>();
    const Ordered sequence{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const Ordered begin{{"SpecialToken", {{"id", first}, {"type_id", 0}}}};
    post_processor = {{"type", "TemplateProcessing"},
                      {"single", Ordered::array({begin, sequence})},
                      {"pair", Ordered::array({begin, sequence, sequence})},
                      {"special_tokens",
                       {{first,
                         {{"id", first},
                          {"ids", Ordered::array({member(all, "tokenizer.ggml.bos_token_id")})},
                          {"tokens", Ordered::array({first})}}}}}};
  }
  Ordered normalizer;
  if (split == "qwen2") normalizer = {{"type", "NFC"}};
  const Ordered root{{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", normalizer},
                     {"pre_tokenizer", pre_tokenizer(reader)},
                     {"post_processor", post_processor},
                     {"decoder", byte_level(true)},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", is_llama3(split)},
                       {"vocab", vocabulary},
                       {"merges", merges}}}};
  Ordered config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  for (const char* const role : {"bos", "eos"})
    if (const Ordered name = token(role); name.is_string())
      config[fmt::format("{}_token", role)] = name;
  if (const Json& text = member(all, "tokenizer.chat_template"); text.is_string())
    config["chat_template"] = text.get<std::string>();
  return std::make_unique<BpeTokenizer>(parse_tokenizer_json(
      {{"tokenizer.json", root.dump(1) + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}},
      reader.path()));
}

}  // namespace sluice
