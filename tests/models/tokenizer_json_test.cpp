#include "models/text/bpe/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <set>

#include "engine/io/file.h"
#include "models/text/bpe/bpe_tokenizer.h"
#include "models/text/byte_tokenizer.h"
#include "models/text/char_tokenizer.h"
#include "models/text/tokenizer.h"
#include "tests/models/text_support.h"
#include "tests/support/catch.h"

namespace sluice::test {

nlohmann::json small_tokenizer_json() {
  const BpeDescription bpe = small_bpe();
  nlohmann::json vocabulary, merges;
  for (const auto& [name, id] : bpe.symbols)
    vocabulary[name] = id;
  for (const auto& [left, right, place] : bpe.merges)
    merges.push_back({left, right});
  return {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"normalizer", nullptr},
          {"added_tokens", {{{"id", 259}, {"content", "<|endoftext|>"}, {"special", true}}}}};
}

}  // namespace sluice::test

namespace sluice::test::tokenizer_json_test {

using Ids = std::vector<std::int32_t>;
using nlohmann::json;

namespace {

/// A small tokenizer.json with `patch` (RFC 7396) merged into it.
json patched(const json& patch) {
  auto root = small_tokenizer_json();
  root.merge_patch(patch);
  return root;
}

std::string tokenizer_json_error(const json& patch) {
  const TemporaryFolder folder;
  const std::string text = patched(patch).dump();
  return usage_error([&] { read_tokenizer_json(folder.write("tokenizer.json", text)); });
}

BpeTokenizer tokenizer_of(const json& patch, const json& config = {}) {
  TokenizerFiles files{{"tokenizer.json", patched(patch).dump()}};
  if (!config.is_null()) files.emplace("tokenizer_config.json", config.dump());
  return BpeTokenizer(parse_tokenizer_json(std::move(files), "tokenizer.json"));
}

std::vector<std::string> pieces_of(const std::vector<std::string>& split, std::string_view text) {
  const PreTokenizer splitter(split);
  PreTokenizer::Pieces walk(splitter, text);
  std::vector<std::string> pieces;
  while (const auto piece = walk.next())
    pieces.emplace_back(*piece);
  return pieces;
}

std::vector<std::string> split_of(const json& pre_tokenizer) {
  json root = small_tokenizer_json();
  root["pre_tokenizer"] = pre_tokenizer;
  return parse_tokenizer_json({{"tokenizer.json", root.dump()}}, "tokenizer.json").split;
}

json sequence(const json& first, bool use_regex) {
  return {{"type", "Sequence"},
          {"pretokenizers", {first, {{"type", "ByteLevel"}, {"use_regex", use_regex}}}}};
}

const json smollm = sequence({{"type", "Digits"}, {"individual_digits", true}}, true);
const json llama3 =
    sequence({{"type", "Split"},
              {"pattern",
               {{"Regex", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                          R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
              {"behavior", "Isolated"},
              {"invert", false}},
             false);

json added(const json& more) {
  json list = small_tokenizer_json().at("added_tokens");
  list.insert(list.end(), more.begin(), more.end());
  return {{"added_tokens", list}};
}

}  // namespace

TEST_CASE("Text is split as a tokenizer.json says", "[tokenizer_json]") {
  using Pieces = std::vector<std::string>;
  CHECK(split_of({{"type", "ByteLevel"}}) == Pieces{gpt2_split});
  CHECK(split_of({{"type", "ByteLevel"}, {"use_regex", false}}) == Pieces{});
  CHECK(pieces_of({}, "a b\xFF c") == Pieces{"a b", "\xFF", " c"});
  // SmolLM2 takes digits out first, so that a space stays before them.
  CHECK(pieces_of(split_of(smollm), "in 2024, it's\n\n x") ==
        Pieces{"in", " ", "2", "0", "2", "4", ",", " it", "'s", "\n\n", " x"});
  CHECK(pieces_of(split_of(smollm), "\u0663\u00BD") == Pieces{"\u0663", "\u00BD"});
  // Llama 3 takes digits in threes, one character before a word, and breaks behind punctuation.
  CHECK(pieces_of(split_of(llama3), "(Hello 12345 IT'S!!\n\n  you\u180E \n x") ==
        Pieces{"(Hello", " ", "123", "45", " IT", "'S", "!!\n\n", " ", " you", "\u180E", " \n",
               " x"});
  const json words = sequence(
      {{"type", "Split"}, {"pattern", {{"Regex", "[a-z]+"}}}, {"behavior", "Isolated"}}, false);
  CHECK(pieces_of(split_of(words), "12ab 3c") == Pieces{"12", "ab", " 3", "c"});
  CHECK(pieces_of({"a$"}, "ba\nca") == Pieces{"b", "a", "\nc", "a"});
}

TEST_CASE("A tokenizer that is not GPT-2's encodes and is saved as it was read",
          "[tokenizer_json]") {
  const json patch = {{"pre_tokenizer", smollm}};
  const json config{{"eos_token", {{"content", "abc"}}}, {"chat_template", "{{ x }}"}};
  const BpeTokenizer tokenizer = tokenizer_of(patch, config);
  CHECK(tokenizer.kind() == "bpe");
  CHECK(tokenizer.end_of_text() == 257);  // "abc"
  CHECK(tokenizer.encode("abc ab1") == Ids{257, ' ', 256, '1'});
  const TemporaryFolder folder;
  tokenizer.save(folder.path());
  CHECK(json::parse(read_text_file(folder.path() / "tokenizer.json")) == patched(patch));
  CHECK(json::parse(read_text_file(folder.path() / "tokenizer_config.json")) == config);
  const auto again = load_tokenizer(folder.path());
  CHECK(again->kind() == "bpe");
  CHECK(again->end_of_text() == 257);
  CHECK(again->encode("abc ab1") == tokenizer.encode("abc ab1"));
  // GPT-2's own stays GPT-2's.
  CHECK(tokenizer_of(json::object()).kind() == "gpt2");
}

TEST_CASE("Added tokens are found in text, the longest first", "[tokenizer_json]") {
  const BpeTokenizer tokenizer =
      tokenizer_of(added({{{"id", 260}, {"content", "<x>"}, {"special", true}},
                          {{"id", 261}, {"content", "<x>y"}, {"special", true}},
                          {{"id", 262}, {"content", "  "}, {"special", false}},
                          {{"id", 263}, {"content", "\u4E2D"}, {"special", false}}}));
  CHECK(tokenizer.kind() == "bpe");
  CHECK(tokenizer.encode_with_special("a<x>y<x>z  <|endoftext|>\u4E2D") ==
        Ids{'a', 261, 260, 'z', 262, 259, 263});
  // In ordinary text the names of special tokens mean nothing.
  CHECK(tokenizer.encode("<x>   ") == Ids{'<', 'x', '>', 262, ' '});
  CHECK(tokenizer.decode(Ids{262, 263, 260}) == "  \u4E2D<x>");
}

TEST_CASE("Text is brought into normalization form C where the tokenizer asks for it",
          "[tokenizer_json]") {
  const BpeTokenizer tokenizer = tokenizer_of({{"normalizer", {{"type", "NFC"}}}});
  CHECK(tokenizer.kind() == "bpe");
  const auto normal = [&](std::string_view text) {
    return tokenizer.decode(tokenizer.encode(text));
  };
  CHECK(normal("e\u0301 A\u030A\u0323 \u212B") == "\u00E9 \u1EA0\u030A \u00C5");
  CHECK(normal("\u1100\u1161\u11A8") == "\uAC01");
  CHECK(normal("\u0958") == "\u0915\u093C");  // excluded from composition
  CHECK(normal("\xCC e\u0301\xFF") == "\xCC \u00E9\xFF");
  CHECK(normal("plain \u00E9") == "plain \u00E9");
  CHECK(tokenizer_of(json::object()).decode(tokenizer_of(json::object()).encode("e\u0301")) ==
        "e\u0301");
}

TEST_CASE("Added tokens are found before text is normalized, or after", "[tokenizer_json]") {
  json patch = added(json::array({{{"id", 260}, {"content", "<x>"}, {"normalized", false}},
                                  {{"id", 261}, {"content", "e\u0301!"}, {"normalized", true}},
                                  {{"id", 262}, {"content", "c<"}, {"normalized", true}}}));
  patch["normalizer"] = {{"type", "NFC"}};
  const BpeTokenizer tokenizer = tokenizer_of(patch);
  // U+0338 makes one character of it and the > before it, but not of that in a token.
  CHECK(tokenizer.encode_with_special("<x>\u0338").front() == 260);
  CHECK(tokenizer.encode_with_special("\u00E9!e\u0301!") == Ids{261, 261});
  CHECK(tokenizer.encode_with_special("c<x>") == Ids{'c', 260});
}

TEST_CASE("Files beside tokenizer.json name its end of a text, and are kept", "[tokenizer_json]") {
  const TemporaryFolder folder, saved;
  folder.write("tokenizer.json", patched({{"pre_tokenizer", smollm}}).dump());
  folder.write("special_tokens_map.json", R"({"eos_token": {"content": "abc"}})");
  folder.write("chat_template.jinja", "{{ messages }}");
  folder.write("generation_config.json", R"({"eos_token_id": [257, 256]})");
  const auto tokenizer = load_tokenizer(folder.path());
  CHECK(tokenizer->end_of_text() == 257);
  tokenizer->save(saved.path());
  for (const char* const name :
       {"special_tokens_map.json", "chat_template.jinja", "generation_config.json"})
    CHECK(read_text_file(saved.path() / name) == read_text_file(folder.path() / name));
  folder.write("tokenizer_config.json", R"({"eos_token": "ab"})");
  CHECK(load_tokenizer(folder.path())->end_of_text() == 256);
  folder.write("tokenizer_config.json",
               R"({"added_tokens_decoder": {"260": {"content": "<|im_end|>"}}})");
  CHECK_THAT(usage_error([&] { load_tokenizer(folder.path()); }),
             Contains("tokenizer_config.json adds the token \"<|im_end|>\""));
}

TEST_CASE("Whole pieces, first tokens and bytes without a symbol", "[tokenizer_json]") {
  // Without its merges "abc" is made of its parts, unless whole pieces need none.
  const json whole{{"model", {{"ignore_merges", true}, {"merges", json::array({"a b"})}}}};
  CHECK(tokenizer_of(whole).encode("abc ab") == Ids{257, ' ', 256});
  const json begin{{"type", "TemplateProcessing"},
                   {"single",
                    {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                     {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  CHECK(tokenizer_of({{"post_processor", begin}}).begin_of_text() == Ids{259});
  CHECK(tokenizer_of(
            {{"post_processor", {{"type", "Sequence"}, {"processors", json::array({begin})}}}})
            .begin_of_text() == Ids{259});
  CHECK(tokenizer_of(json::object()).begin_of_text().empty());
  json without = small_tokenizer_json();
  without["model"]["vocab"].erase("~");
  without["model"]["vocab"]["<|pad|>"] = '~';
  const auto parsed = [&] {
    return BpeTokenizer(
        parse_tokenizer_json({{"tokenizer.json", without.dump()}}, "tokenizer.json"));
  };
  CHECK(parsed().kind() == "bpe");
  CHECK_THAT(usage_error([&] { parsed().encode("ab ~"); }),
             Contains("the text has \" ~\" with the byte 126") && Contains("no token"));
  without["model"]["unk_token"] = "<|endoftext|>";
  CHECK(parsed().encode("ab~") == Ids{256, 259});
}

TEST_CASE("The hash of a tokenizer follows what decides ids, and nothing else",
          "[tokenizer_json]") {
  const auto hash = [](const json& patch, const json& config = {}) {
    return tokenizer_of(patch, config).content_hash();
  };
  const json end = {{"id", 259}, {"content", "<|endoftext|>"}, {"special", true}};
  const json more = {{"id", 260}, {"content", "<x>"}, {"special", true}};
  const auto added = [](const json& tokens) { return json{{"added_tokens", tokens}}; };
  std::set<std::string> hashes{hash(json::object())};
  const json others[] = {
      {{"normalizer", {{"type", "NFC"}}}},
      {{"model", {{"ignore_merges", true}}}},
      {{"model", {{"merges", {"ab c", "a b", "\u0120 a"}}}}},
      {{"pre_tokenizer",
        {{"type", "Sequence"},
         {"pretokenizers",
          {{{"type", "Digits"}, {"individual_digits", true}}, {{"type", "ByteLevel"}}}}}}},
      {{"pre_tokenizer",
        {{"type", "Sequence"},
         {"pretokenizers",
          {{{"type", "Digits"}, {"individual_digits", false}}, {{"type", "ByteLevel"}}}}}}},
      added({end, more}),
      added({end, json{{"id", 260}, {"content", "<x>"}, {"special", false}}}),
      added({end, json{{"id", 260}, {"content", "<y>"}, {"special", true}}})};
  for (const json& patch : others) {
    CAPTURE(patch.dump());
    CHECK(hashes.insert(hash(patch)).second);
  }
  CHECK(hash(added({more, end})) == hash(added({end, more})));
  CHECK(hash(added({end, more}), {{"eos_token", "<x>"}}) == hash(added({end, more})));

  // Exported and read again.
  const TemporaryFolder folder;
  tokenizer_of(others[0]).save(folder.path());
  CHECK(load_tokenizer(folder.path())->content_hash() == hash(others[0]));
  const auto chars = [](const char* text) { return CharTokenizer::from_text(text).content_hash(); };
  CHECK(chars("ab") == chars("ba"));
  CHECK(chars("ab") != chars("ac"));
  CHECK(ByteTokenizer().content_hash() != chars("ab"));
}

TEST_CASE("A tokenizer.json of another kind is refused", "[tokenizer_json]") {
  CHECK_THAT(tokenizer_json_error({{"model", {{"type", "Unigram"}}}}),
             Contains("its model has \"type\": \"Unigram\""));
  CHECK_THAT(tokenizer_json_error({{"model", {{"byte_fallback", true}}}}),
             Contains("byte_fallback"));
  CHECK_THAT(tokenizer_json_error({{"model", {{"vocab", nullptr}}}}), Contains("no object"));
  CHECK_THAT(tokenizer_json_error({{"model", {{"merges", nullptr}}}}), Contains("\"merges\""));
  CHECK_THAT(tokenizer_json_error({{"model", {{"merges", {"a b", 7}}}}}),
             Contains("merge 2 is 7,"));
  CHECK_THAT(tokenizer_json_error({{"model", {{"merges", {"a b", "abc"}}}}}),
             Contains("merge 2 is \"abc\""));
  CHECK_THAT(tokenizer_json_error({{"pre_tokenizer", {{"type", "Split"}}}}), Contains("Split"));
  CHECK_THAT(tokenizer_json_error({{"pre_tokenizer", nullptr}}), Contains("pre_tokenizer"));
  CHECK_THAT(tokenizer_json_error({{"pre_tokenizer", {{"add_prefix_space", true}}}}),
             Contains("add_prefix_space"));
  CHECK_THAT(tokenizer_json_error({{"normalizer", {{"type", "NFKC"}}}}), Contains("NFKC"));
  CHECK_THAT(tokenizer_json_error({{"added_tokens", {{{"id", 3}}}}}), Contains("content"));
  CHECK_THAT(tokenizer_json_error({{"added_tokens", {{{"id", 3}, {"content", "<|endoftext|>"}}}}}),
             Contains("the id 3, and 259"));
  const json twice = {{{"id", 260}, {"content", "<x>"}}, {{"id", 261}, {"content", "<x>"}}};
  CHECK_THAT(tokenizer_json_error({{"added_tokens", twice}}), Contains("\"<x>\" twice"));
  const TemporaryFolder folder;
  CHECK_THAT(usage_error([&] { read_tokenizer_json(folder.write("tokenizer.json", "[]")); }),
             Contains("no object that gives each symbol its id") || Contains("\"type\": null"));
  const auto step = [&](const json& inner) {
    return tokenizer_json_error({{"pre_tokenizer", inner}});
  };
  CHECK_THAT(step(sequence({{"type", "Whitespace"}}, true)), Contains("\"Whitespace\""));
  CHECK_THAT(step(sequence({{"type", "Split"}, {"behavior", "Removed"}}, false)),
             Contains("\"behavior\": \"Removed\""));
  CHECK_THAT(step(sequence({{"type", "Split"}, {"behavior", "Isolated"}, {"invert", true}}, false)),
             Contains("\"invert\": true"));
  CHECK_THAT(step(sequence({{"type", "Split"}, {"behavior", "Isolated"}}, false)),
             Contains("without a \"Regex\""));
  CHECK_THAT(
      step(sequence({{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "a(b"}}}},
                    false)),
      Contains("cannot be used") && Contains("a(b"));
  for (const char* const regex : {R"(\h+)", "[a-z&&[^o]]"})
    CHECK_THAT(
        step(sequence(
            {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", regex}}}}, false)),
        Contains("means something else here"));
  CHECK_THAT(tokenizer_json_error({{"model", {{"fuse_unk", true}}}}), Contains("fuse_unk"));
  CHECK_THAT(tokenizer_json_error({{"model", {{"dropout", 0.5}}}}), Contains("dropout"));
  CHECK_THAT(step({{"type", "Sequence"}, {"pretokenizers", json::array()}}),
             Contains("a sequence of no pre-tokenizers"));
  const auto begin = [&](const json& single) {
    return tokenizer_json_error(
        {{"post_processor", {{"type", "TemplateProcessing"}, {"single", single}}}});
  };
  const json text{{"Sequence", {{"id", "A"}}}}, end{{"SpecialToken", {{"id", "<|endoftext|>"}}}};
  CHECK_THAT(begin({text, end}), Contains("puts \"<|endoftext|>\" behind every text"));
  CHECK_THAT(begin({{{"SpecialToken", {{"id", "<s>"}}}}, text}), Contains("puts \"<s>\" before"));
  CHECK_THAT(tokenizer_json_error({{"post_processor", {{"type", "BertProcessing"}}}}),
             Contains("BertProcessing"));
  CHECK_THAT(tokenizer_json_error(
                 added(json::array({{{"id", 260}, {"content", "<m>"}, {"lstrip", true}}}))),
             Contains("\"lstrip\": true"));
}

}  // namespace sluice::test::tokenizer_json_test
