#include "models/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/bpe/bpe_files.h"
#include "models/text/bpe/bpe_tokenizer.h"
#include "models/text/bpe/tokenizer_json.h"
#include "models/text/byte_tokenizer.h"
#include "models/text/char_tokenizer.h"
#include "models/text/hugging_face_files.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// One way in which a folder can describe a tokenizer.
struct Format {
  std::string_view kind;
  std::vector<std::string_view> files;
  std::unique_ptr<Tokenizer> (*load)(const fs::path& directory);

  bool is_in(const fs::path& directory) const {
    return std::all_of(files.begin(), files.end(), [&](std::string_view file) {
      std::error_code unreadable;
      return fs::exists(directory / file, unreadable);
    });
  }
};

std::unique_ptr<Tokenizer> bpe_tokenizer(BpeTables tables) {
  return std::make_unique<BpeTokenizer>(std::move(tables));
}

std::vector<Format> formats_in(const fs::path& directory) {
  std::vector<Format> formats = {
      {"chars",
       {"chars.json"},
       [](const fs::path& folder) -> std::unique_ptr<Tokenizer> {
         return std::make_unique<CharTokenizer>(CharTokenizer::load(folder / "chars.json"));
       }},
      {"bytes",
       {"bytes.json"},
       [](const fs::path& folder) -> std::unique_ptr<Tokenizer> {
         return std::make_unique<ByteTokenizer>(ByteTokenizer::load(folder / "bytes.json"));
       }},
      {"bpe",
       {"tokenizer.json"},
       [](const fs::path& folder) {
         return bpe_tokenizer(read_tokenizer_json(folder / "tokenizer.json"));
       }},
      {"bpe",
       {"vocab.json", "merges.txt"},
       [](const fs::path& folder) {
         require_gpt2_tokenizer(folder);
         return bpe_tokenizer(read_bpe_files(folder / "vocab.json", folder / "merges.txt"));
       }},
      {"bpe",
       {"encoder.json", "vocab.bpe"},
       [](const fs::path& folder) {
         return bpe_tokenizer(read_bpe_files(folder / "encoder.json", folder / "vocab.bpe"));
       }},
  };
  std::erase_if(formats, [&](const Format& format) { return !format.is_in(directory); });
  // A tokenizer.json beside a file of this project is what this project wrote for Hugging Face.
  const bool ours = !formats.empty() && formats.front().kind != "bpe";
  if (ours && fs::exists(directory / "tokenizer.json") &&
      merges_nothing(directory / "tokenizer.json"))
    std::erase_if(formats, [](const Format& format) {
      return format.files.front() == std::string_view("tokenizer.json");
    });
  return formats;
}

}  // namespace

std::size_t Tokenizer::index(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) [[unlikely]]
    fail(fmt::format("token id {} is outside the vocabulary of this '{}' tokenizer, 0 to {}", id,
                     kind(), vocab_size() - 1),
         ErrorKind::usage);
  return static_cast<std::size_t>(id);
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& directory) {
  const auto formats = formats_in(directory);
  if (formats.empty())
    fail(fmt::format("{} has no tokenizer: looked for chars.json, bytes.json, tokenizer.json, "
                     "vocab.json with merges.txt, and encoder.json with vocab.bpe",
                     directory.string()),
         ErrorKind::usage);
  const Format& chosen = formats.front();
  for (const Format& other : formats)
    if (other.kind != chosen.kind)
      fail(fmt::format("{} has two tokenizers, {} and {}: remove the one that is not meant",
                       directory.string(), chosen.files.front(), other.files.front()),
           ErrorKind::usage);
  return chosen.load(directory);
}

bool has_tokenizer(const fs::path& directory) {
  return !formats_in(directory).empty();
}

bool is_tokenizer_file(std::string_view name) {
  constexpr std::string_view names[] = {"chars.json",
                                        "bytes.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "encoder.json",
                                        "vocab.bpe",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "chat_template.jinja",
                                        "generation_config.json",
                                        "added_tokens.json"};
  return std::ranges::find(names, name) != std::end(names);
}

std::vector<std::int32_t> parse_token_ids(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::int32_t> ids;
  std::string word;
  while (stream >> word) {
    std::int32_t id = -1;
    const char* const end_of_word = word.data() + word.size();
    const auto [end, error] = std::from_chars(word.data(), end_of_word, id);
    if (error != std::errc() || end != end_of_word || id < 0)
      fail(fmt::format("--tokens: '{}' is not a token id; write numbers, \"1 2 3\", or give text "
                       "as --prompt",
                       excerpt(word)),
           ErrorKind::usage);
    ids.push_back(id);
  }
  return ids;
}

}  // namespace sluice
