#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "models/text/tokenizer.h"

namespace sluice {

/// Tokens by position, wherever they are.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  /// Fills `out` from token `start` on. Safe from several threads.
  virtual void read(std::int64_t start, std::span<std::int32_t> out) const = 0;
};

/// A .bin of uint16 ids (headerless or llm.c's); every id is checked against `vocab_size`.
std::unique_ptr<TokenSource> open_token_file(const std::filesystem::path& file,
                                             std::int64_t vocab_size);
std::unique_ptr<TokenSource> tokens_in_memory(std::span<const std::int32_t> ids);

/// Changes when the tokens do: size and a CRC-32 over the beginning, middle and end.
std::string fingerprint(const TokenSource& tokens);

struct Dataset {
  std::unique_ptr<TokenSource> train;
  std::unique_ptr<TokenSource> val;  ///< none: no validation
};

bool is_token_data(const std::filesystem::path& data);

/// A folder with train.bin and perhaps val.bin, a .bin, or a text file, which is tokenised; the
/// last tenth of a text (by bytes, at a character's border) is its validation part unless
/// `val_data` is given. Text needs a tokenizer.
Dataset open_dataset(const std::filesystem::path& data, const std::filesystem::path& val_data,
                     const Tokenizer* tokenizer, std::int64_t vocab_size);

/// Where the first `fraction` of a text ends, by bytes but not inside a UTF-8 character.
std::size_t text_border(std::string_view text, double fraction);

/// The whole file; an empty one is refused.
std::string read_text(const std::filesystem::path& file);

}  // namespace sluice
