#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// Tokens by position, wherever they are.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  /// Fills `out` from token `start` on. Safe from several threads.
  virtual void read(std::int64_t start, std::span<std::int32_t> out) const = 0;
};

/// A .bin of uint16 ids (headerless or llm.c's); every id is checked against `vocab_size`, now and
/// again whenever it is read: Error (runtime) where the file was changed in between.
std::unique_ptr<TokenSource> open_token_file(const std::filesystem::path& file,
                                             std::int64_t vocab_size);
/// Several, one after another, as if they were one file. Error (usage) where they are not all of
/// one of the two formats.
std::unique_ptr<TokenSource> open_token_files(const std::vector<std::filesystem::path>& files,
                                              std::int64_t vocab_size);

std::unique_ptr<TokenSource> tokens_in_memory(std::span<const std::int32_t> ids);
std::unique_ptr<TokenSource> tokens_in_memory(std::vector<std::uint16_t> ids);

/// Changes when the tokens do: size and a CRC-32 over the beginning, middle and end.
std::string fingerprint(const TokenSource& tokens);

}  // namespace sluice
