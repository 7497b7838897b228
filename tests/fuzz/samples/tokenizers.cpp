#include <nlohmann/json.hpp>

#include "tests/fuzz/samples.h"
#include "tests/fuzz/small_files.h"

namespace sluice::fuzz {
namespace {

using Json = nlohmann::json;

std::string pair(const std::string& vocabulary, std::string_view merges) {
  return vocabulary + '\0' + std::string(merges);
}
std::string merges(std::string_view text) {
  return pair("", text);
}
/// The small tokenizer's files with the id of one symbol changed or added.
std::string symbol(const char* name, const Json& id) {
  Json vocabulary = small_vocabulary();
  vocabulary[name] = id;
  return pair(vocabulary.dump(), small_merges);
}
/// Returns a vocabulary with one symbol renamed.
std::string renamed(const char* from, const char* to) {
  Json vocabulary = small_vocabulary();
  vocabulary[to] = vocabulary[from];
  vocabulary.erase(from);
  return pair(vocabulary.dump(), small_merges);
}
std::string without(const char* name) {
  Json vocabulary = small_vocabulary();
  vocabulary.erase(name);
  return pair(vocabulary.dump(), small_merges);
}
/// A list, where braces alone could mean an object.
Json list(std::initializer_list<Json> entries) {
  Json all = Json::array();
  for (const Json& entry : entries)
    all.push_back(entry);
  return all;
}
std::string patch(const Json& json) {
  return "+" + json.dump();
}
std::string added(const Json& token) {
  return patch({{"added_tokens", list({token})}});
}

}  // namespace

Samples bpe_samples() {
  return {
      {"accepted", pair(small_vocabulary().dump(), small_merges), ""},
      {"accepted-crlf", merges("#version: 0.2\r\na b\r\nab c\r\n"), ""},
      {"accepted-without-version", merges("a b\nab c\n"), ""},
      {"accepted-without-last-line-end", merges("a b\nab c"), ""},
      {"accepted-blank-lines", merges("\n\na b\n\nab c\n\n"), ""},
      {"accepted-special-symbol", symbol("[x]", 259), ""},
      // ids: dense, in range, unique
      {"id-out-of-range", symbol("<x>", 260), "need the ids 0 to 259"},
      {"id-twice", symbol("<x>", 7), "and to another one"},
      {"id-missing", without("<|endoftext|>").replace(0, 1, R"({"<x>":259,)"), "need the ids"},
      {"id-negative", symbol("ab", -1), "not a whole number"},
      {"id-fraction", symbol("ab", 2.5), "not a whole number"},
      {"id-2-to-63", symbol("ab", std::uint64_t{1} << 63), "9223372036854775808"},
      {"id-2-to-32", symbol("ab", std::uint64_t{1} << 32), "4294967296"},
      {"id-1e30", symbol("ab", 1e30), "not a whole number"},
      {"id-text", symbol("ab", "256"), "not a whole number"},
      {"id-null", symbol("ab", nullptr), "not a whole number"},
      {"id-list", symbol("ab", list({1})), "not a whole number"},
      // names
      {"byte-missing", renamed("~", "<~>"), "no symbol for the byte 126"},
      {"name-empty", symbol("", 259), "not written in GPT-2's 256 byte characters"},
      {"name-with-space", symbol("a b", 259), "not written in GPT-2's 256 byte characters"},
      {"name-beyond-alphabet", symbol("\u4E2D", 259), "not written in GPT-2's 256"},
      {"name-unused-character", symbol("\u00AD", 259), "not written in GPT-2's 256"},
      {"name-twice", pair(R"({"a":0,"a":0})", ""), "occurs twice"},
      // the JSON around them
      {"vocabulary-list", pair("[]", small_merges), "no object"},
      {"vocabulary-empty", pair("{}", small_merges), "no object"},
      {"vocabulary-cut", pair(R"({"a":0)", small_merges), "not valid JSON"},
      {"vocabulary-not-utf8", pair("{\"\xFF\":0}", small_merges), "not valid JSON"},
      {"vocabulary-deep", pair(std::string(100'000, '['), small_merges), "nested"},
      // merges: two known symbols, a known result
      {"merge-of-one", merges("a b\nab\n"), "line 2 is \"ab\""},
      {"merge-of-three", merges("a b c\n"), "not two symbols"},
      {"merge-without-right", merges("a \n"), "not two symbols"},
      {"merge-without-left", merges(" a\n"), "not two symbols"},
      {"merge-two-spaces", merges("a  b\n"), "not two symbols"},
      {"merge-unknown-left", merges("qq b\n"), "needs the symbol \"qq\""},
      {"merge-unknown-right", merges("a qq\n"), "needs the symbol \"qq\""},
      {"merge-unknown-result", merges("a c\n"), "needs the symbol \"ac\""},
      {"merge-twice", merges("a b\nab c\na b\n"), "a second time"},
      {"merge-not-utf8", merges("\xFF\xFE b\n"), "needs the symbol"},
      {"merge-endless", merges(std::string(100'000, 'a')), "not two symbols"},
      {"merge-version-later", merges("a b\n#version: 0.2\n"), "needs the symbol"},
      {"merges-cut", merges("a b\n"), "cut short"},
      {"merges-empty", merges(""), "cut short"},
  };
}

/// A tokenizer.json with this step before the byte-level one.
std::string sequence(const Json& step) {
  const Json last{{"type", "ByteLevel"}, {"use_regex", false}};
  return patch({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", list({step, last})}}}});
}
std::string split(const char* regex) {
  return sequence({{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", regex}}}});
}

Samples tokenizer_json_samples() {
  const Json twice =
      list({Json{{"id", 259}, {"content", "<x>"}}, Json{{"id", 260}, {"content", "<x>"}}});
  return {
      {"accepted", small_tokenizer().dump(), ""},
      {"accepted-unchanged", "+{}", ""},
      {"accepted-pairs",
       patch({{"model", {{"merges", list({list({"a", "b"}), list({"ab", "c"})})}}}}), ""},
      {"accepted-without-added", patch({{"added_tokens", nullptr}}), ""},
      {"accepted-new-token", added({{"id", 259}, {"content", "<x>"}}), ""},
      {"accepted-ignore-merges", patch({{"model", {{"ignore_merges", true}}}}), ""},
      {"accepted-nfc", patch({{"normalizer", {{"type", "NFC"}}}}), ""},
      {"accepted-split", split("a|[^a]+"), ""},
      {"accepted-split-of-nothing", split("(?=x)"), ""},
      {"accepted-ordinary-token", added({{"id", 259}, {"content", "  "}, {"special", false}}), ""},
      {"not-an-object", "[]", "is no tokenizer that this program reads"},
      {"other-model", patch({{"model", {{"type", "Unigram"}}}}), "\"Unigram\""},
      {"byte-fallback", patch({{"model", {{"byte_fallback", true}}}}), "byte_fallback"},
      {"ignore-merges", patch({{"model", {{"ignore_merges", 1}}}}), "ignore_merges"},
      {"split-unfinished", split("a(b"), "cannot be used"},
      {"split-looping", split("(a*)*b"), ""},
      {"split-removed", sequence({{"type", "Split"}, {"behavior", "Removed"}}), "Removed"},
      {"split-without-pattern", sequence({{"type", "Split"}, {"behavior", "Isolated"}}), "Regex"},
      {"sequence-of-nothing",
       patch({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array()}}}}),
       "no pre-tokenizers"},
      {"sequence-in-sequence", sequence({{"type", "Sequence"}}), "\"Sequence\""},
      {"token-without-text", added({{"id", 259}, {"content", ""}}), "content"},
      {"token-that-strips", added({{"id", 259}, {"content", "<x>"}, {"rstrip", true}}), "rstrip"},
      {"unknown-first-token",
       patch({{"post_processor",
               {{"type", "TemplateProcessing"},
                {"single", list({Json{{"SpecialToken", {{"id", "<s>"}}}}})}}}}),
       "puts \"<s>\" before every text"},
      {"prefix", patch({{"model", {{"continuing_subword_prefix", "##"}}}}), "prefix"},
      {"suffix", patch({{"model", {{"end_of_word_suffix", "</w>"}}}}), "suffix"},
      {"other-split", patch({{"pre_tokenizer", {{"type", "Split"}}}}), "Split"},
      {"no-split", patch({{"pre_tokenizer", nullptr}}), "pre_tokenizer"},
      {"prefix-space", patch({{"pre_tokenizer", {{"add_prefix_space", true}}}}), "prefix_space"},
      {"normalizer", patch({{"normalizer", {{"type", "NFKC"}}}}), "NFKC"},
      {"normalizer-list", patch({{"normalizer", {{"type", list({1})}}}}), "[1]"},
      {"vocabulary-missing", patch({{"model", {{"vocab", nullptr}}}}), "no object"},
      {"vocabulary-number", patch({{"model", {{"vocab", 7}}}}), "no object"},
      {"merges-missing", patch({{"model", {{"merges", nullptr}}}}), "no list"},
      {"merges-object", patch({{"model", {{"merges", {{"a", "b"}}}}}}), "no list"},
      {"merge-number", patch({{"model", {{"merges", list({"a b", 7})}}}}), "merge 2 is 7"},
      {"merge-of-one", patch({{"model", {{"merges", list({"abc"})}}}}), "not two symbols"},
      {"merge-list-of-three", patch({{"model", {{"merges", list({list({"a", "b", "c"})})}}}}),
       "two symbols"},
      {"merge-list-of-numbers", patch({{"model", {{"merges", list({list({1, 2})})}}}}),
       "two symbols"},
      {"merge-list-of-empty", patch({{"model", {{"merges", list({list({"", "a"})})}}}}),
       "needs the symbol"},
      {"added-not-a-list", patch({{"added_tokens", {{"a", {{"id", 259}, {"content", "<x>"}}}}}}),
       "\"added_tokens\""},
      {"added-number", patch({{"added_tokens", 7}}), "\"added_tokens\""},
      {"added-without-content", added({{"id", 259}}), "content"},
      {"added-without-id", added({{"content", "<x>"}}), "not a whole number"},
      {"added-other-id", added({{"id", 3}, {"content", "<|endoftext|>"}}), "the id 3, and 258"},
      {"added-twice", patch({{"added_tokens", twice}}), "\"<x>\" twice"},
  };
}

Samples characters_samples() {
  return {
      {"accepted-bytes", R"({"tokenizer": "bytes", "vocab_size": 256})", ""},
      {"accepted-characters", R"({"characters": ["\n"," ","a"]})", ""},
      {"accepted-all", R"({"characters": [0,"a","\u00e9","\u4e2d",255]})", ""},
      {"bytes-of-another-size", R"({"tokenizer": "bytes", "vocab_size": 257})", "no list"},
      {"not-an-object", "[]", "no list"},
      {"no-list", R"({"characters": "abc"})", "no list"},
      {"empty-list", R"({"characters": []})", "no list"},
      {"two-characters", R"({"characters": ["a","bc"]})", "entry 1"},
      {"no-character", R"({"characters": [""]})", "entry 0"},
      {"byte-that-is-a-character", R"({"characters": [127]})", "entry 0"},
      {"byte-256", R"({"characters": [256]})", "entry 0"},
      {"byte-negative", R"({"characters": [-1]})", "entry 0"},
      {"null", R"({"characters": [null]})", "entry 0"},
      {"unordered", R"({"characters": ["b","a"]})", "ascending"},
      {"twice", R"({"characters": ["a","a"]})", "ascending"},
  };
}

}  // namespace sluice::fuzz
