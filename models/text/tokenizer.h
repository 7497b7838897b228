#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Turns text into token ids and back. The text is any bytes, usually UTF-8; each class documents
/// its treatment of other bytes. Every member is safe to call from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Treats all of `text` as ordinary text, names of special tokens included. It adds no token that
  /// begins or ends a text.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// As encode(), but the name of a special token, such as "<|endoftext|>", becomes that token.
  virtual std::vector<std::int32_t> encode_with_special(std::string_view text) const {
    return encode(text);
  }
  /// Fails (usage) at an id outside [0, vocab_size()).
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  virtual std::int64_t vocab_size() const = 0;
  /// The token that separates documents, if the vocabulary has one.
  virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }
  /// Returns true if the vocabulary has a special token.
  virtual bool has_special() const { return end_of_text().has_value(); }
  /// Calls `found` with each name of a special token in `text`: what encode() takes for text.
  virtual void find_special(std::string_view, const std::function<void(std::string_view)>&) const {}
  /// The tokens that begin every prompt.
  virtual std::vector<std::int32_t> begin_of_text() const { return {}; }
  /// "bytes", "chars", "gpt2" or "bpe".
  virtual std::string_view kind() const = 0;
  /// Returns a hash of what decides the ids of a text, in 16 hexadecimal digits. It is the same for
  /// one tokenizer, whatever files describe it, and leaves out which token ends a text.
  virtual std::string content_hash() const = 0;

  /// Writes the files that load_tokenizer() needs. Makes the folder if it is absent.
  virtual void save(const std::filesystem::path& directory) const = 0;

 protected:
  /// Returns `id` as an index into the vocabulary; fails (usage) if it is outside.
  std::size_t index(std::int32_t id) const;
};

/// Loads the tokenizer of a folder, which has one of
///   chars.json | bytes.json | tokenizer.json | vocab.json + merges.txt | encoder.json + vocab.bpe
/// (of several of the last three, the first is read). A tokenizer.json
/// without merges beside chars.json or bytes.json belongs to that file, see hugging_face_files.h.
/// Fails (usage) if there is none, if files of two kinds lie side by side, and at a malformed file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory);

/// Returns true if load_tokenizer() would find files to read.
bool has_tokenizer(const std::filesystem::path& directory);

/// Returns true if a file of this name describes the tokenizer beside it, to this program or to
/// Hugging Face. Beside another tokenizer such a file would be wrong.
bool is_tokenizer_file(std::string_view name);

/// Parses token ids as in --tokens: "1 2 3". Throws Error (usage) for anything that is not a whole
/// number of at least 0.
std::vector<std::int32_t> parse_token_ids(const std::string& text);

}  // namespace sluice
