#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/documents.h"

namespace sluice {

/// Tokens by position, in files or in memory: a text from which sequences can be cut anywhere, or
/// pairs of prompt and completion, padded to rows of one length (Pairs).
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  /// Tokens of a row, whose first is no target; 0: a text.
  virtual std::int64_t row() const { return 0; }
  bool in_rows() const { return row() > 0; }
  /// Makes rows longer, with padding. A text has none.
  virtual void pad_rows(std::int64_t) {}
  /// Sets `out` to 1 where a token from `start` on counts as a target, else to 0. Safe to call from
  /// several threads.
  virtual void read_counted(std::int64_t start, std::span<std::uint8_t> out) const;
  /// Returns the length of a text whose attention takes as much for each token as that of a
  /// sequence of `length` tokens does.
  virtual std::int64_t attended(std::int64_t length) const { return length; }
  /// Appends to `documents` those of a row of `length` inputs from token `start` on, which begins
  /// at `first` of their tokens. Does nothing if each row is one document.
  virtual void append_documents(std::int64_t, std::int64_t, std::int64_t, Documents&) const {}
  /// Fills `out` from token `start` on. Safe to call from several threads.
  virtual void read(std::int64_t start, std::span<std::int32_t> out) const = 0;
  /// CRC-32 of all tokens as they are stored, however they are divided among files.
  virtual std::uint32_t checksum() const = 0;
};

/// Inputs of sequences and, shifted by one, their targets: [B, T] each.
struct Sequences {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;  ///< no_target if a target does not count
  Documents documents{};
};

/// Appends the sequence of `length` inputs that begins with token `start`.
void append_sequence(const TokenSource& tokens, std::int64_t start, std::int64_t length,
                     Sequences& sequences);
/// Returns how many targets of that sequence count.
std::int64_t counted_targets(const TokenSource& tokens, std::int64_t start, std::int64_t length);

/// Opens a .bin of ids (TokenFile). Reads all of it and checks every id against
/// `vocab_size`. A later read() of tokens that have changed since is an Error (runtime).
std::unique_ptr<TokenSource> open_token_file(const std::filesystem::path& file,
                                             std::int64_t vocab_size);
/// Opens several files as if they were one. Throws Error (usage) unless all have the same of the
/// two formats.
std::unique_ptr<TokenSource> open_token_files(const std::vector<std::filesystem::path>& files,
                                              std::int64_t vocab_size);

std::unique_ptr<TokenSource> tokens_in_memory(std::span<const std::int32_t> ids);
std::unique_ptr<TokenSource> tokens_in_memory(std::vector<std::uint16_t> ids);
/// The same for vocabularies of more than 65,536 tokens.
std::unique_ptr<TokenSource> wide_tokens_in_memory(std::vector<std::int32_t> ids);

/// Returns the size and the CRC-32 of the beginning, middle and end. Checkpoints identify their
/// data by it, older ones by it alone.
std::string fingerprint(const TokenSource& tokens);

}  // namespace sluice
