#include <nlohmann/json.hpp>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/bpe/bpe_files.h"
#include "models/text/bpe/bpe_tokenizer.h"
#include "models/text/bpe/tokenizer_json.h"
#include "models/text/byte_tokenizer.h"
#include "models/text/char_tokenizer.h"
#include "tests/fuzz/harness.h"
#include "tests/fuzz/small_files.h"

namespace sluice::fuzz {
namespace {

/// A tokenizer of any bytes gives back what it was given, and is the same once saved.
void check_any_bytes(const BpeTables& tables, Bytes input) {
  const BpeTokenizer tokenizer(tables);
  constexpr std::size_t enough = 4096;
  const std::string text =
      "ab abc, 12 <|endoftext|>\n\xFF\xC3\xA9" + std::string(input.substr(0, enough));
  const auto ids = tokenizer.encode(text);
  const auto special = tokenizer.encode_with_special(text);
  if (!tables.unknown && !tables.nfc) {
    require(tokenizer.decode(ids) == text, "a text differs once decoded");
    require(tokenizer.decode(special) == text, "a text differs once decoded with special tokens");
  }
  const auto saved = scratch() / "saved";
  std::filesystem::remove_all(saved);
  tokenizer.save(saved);
  const auto again = load_tokenizer(saved);
  require(again->vocab_size() == tokenizer.vocab_size(), "symbols are lost once saved");
  require(again->end_of_text() == tokenizer.end_of_text(), "the end of text differs once saved");
  require(again->encode(text) == ids, "a text has other tokens once saved");
  require(again->encode_with_special(text) == special, "special tokens differ once saved");
}

}  // namespace

void read_bpe(Bytes input) {
  const auto border = input.find('\0');
  Bytes vocabulary = input.substr(0, border);
  const Bytes merges = border == input.npos ? Bytes() : input.substr(border + 1);
  static const std::string small = small_vocabulary().dump();
  if (vocabulary.empty()) vocabulary = small;
  const auto vocabulary_file = put("vocab.json", vocabulary);
  check_any_bytes(read_bpe_files(vocabulary_file, put("merges.txt", merges)), merges);
}

void read_tokenizer_json(Bytes input) {
  std::string text(input);
  if (input.starts_with('+')) {
    auto patched = small_tokenizer();
    patched.merge_patch(parse_json(input.substr(1), "the patch"));
    text = patched.dump();
  }
  check_any_bytes(sluice::read_tokenizer_json(put("tokenizer.json", text)), input);
}

void read_characters(Bytes input) {
  const auto file = put("chars.json", input);
  try {
    ByteTokenizer::load(file);
    return;
  } catch (const Error& error) {
    require_showable(error.what());
  }
  const CharTokenizer tokenizer = CharTokenizer::load(file);
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    require(tokenizer.encode(tokenizer.decode({&id, 1})) == std::vector{id},
            "a character differs once encoded");
  tokenizer.save(scratch() / "saved");
  require(
      CharTokenizer::load(scratch() / "saved/chars.json").vocab_size() == tokenizer.vocab_size(),
      "characters are lost once saved");
  try {
    tokenizer.encode(input);
  } catch (const Error& error) {  // a character that the vocabulary lacks
    require_showable(error.what());
  }
}

}  // namespace sluice::fuzz
