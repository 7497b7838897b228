#include "models/text/hugging_face_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "engine/io/utf8.h"
#include "models/text/bpe/byte_alphabet.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

void write_files(const fs::path& directory, const Ordered& pre_tokenizer, const Ordered& decoder,
                 const Ordered& model) {
  const Ordered root{{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Ordered::array()},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", pre_tokenizer},
                     {"post_processor", nullptr},
                     {"decoder", decoder},
                     {"model", model}};
  write_text_file(directory / "tokenizer.json", root.dump(2) + "\n");
  // If not set, the class would follow from the model type in config.json: GPT-2's tokenizer.
  const Ordered config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"clean_up_tokenization_spaces", false}};
  write_text_file(directory / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace

void write_character_files(const fs::path& directory, const std::vector<std::string>& symbols) {
  Ordered::object_t vocabulary;  // appended to, since looking up every name would be slow
  for (std::size_t id = 0; id < symbols.size(); ++id) {
    const auto first = static_cast<unsigned char>(symbols[id][0]);
    const bool bare = utf8_size(symbols[id]) == 0 || first == 0;
    vocabulary.push_back({bare ? fmt::format("<0x{:02X}>", first) : symbols[id], id});
  }
  const Ordered fuse{{"type", "Sequence"},
                     {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  // Every single character matches, line breaks included.
  write_files(directory,
              {{"type", "Split"},
               {"pattern", {{"Regex", "[\\s\\S]"}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              fuse, {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "<unk>"}});
}

void write_byte_files(const fs::path& directory) {
  Ordered vocabulary = Ordered::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  const Ordered bytes{{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", false},
                      {"use_regex", false}};
  write_files(directory, bytes, bytes,
              {{"type", "BPE"},
               {"dropout", nullptr},
               {"unk_token", nullptr},
               {"continuing_subword_prefix", nullptr},
               {"end_of_word_suffix", nullptr},
               {"fuse_unk", false},
               {"byte_fallback", false},
               {"vocab", vocabulary},
               {"merges", Ordered::array()}});
}

bool merges_nothing(const fs::path& tokenizer_json) {
  const auto root = read_json_file(tokenizer_json, max_text_file);
  const auto merges = nlohmann::json::json_pointer("/model/merges");
  return !root.contains(merges) || root.at(merges).empty();
}

}  // namespace sluice
