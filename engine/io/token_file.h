#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "engine/io/durable.h"
#include "engine/io/file.h"

namespace sluice {

/// Returns the bytes of an id in token files: 2, or 4 for a vocabulary that needs them.
constexpr std::size_t token_bytes(std::int64_t vocab_size) {
  return vocab_size <= 65536 ? 2 : 4;
}

/// A file of token ids, read on demand. Its numbers are little-endian. Two formats:
///  - headerless uint16 ids, as nanoGPT writes;
///  - llm.c's: 256 int32 (magic, version, count, zeros), then `count` ids, of uint16 with magic
///    20240520 and version 1, or of uint32 with magic 20240801 and version 7 (its Llama 3).
///
/// The magic numbers are also legal beginnings of a headerless file: the ids 55432 and 308, or
/// 55713 and 308. A file with such a beginning is llm.c's if version and count agree with its size,
/// else it is refused. A truncated llm.c file is far likelier than such a text, and its header
/// would be trained on.
///
/// An unsuitable file is ErrorKind::usage. The file is read with system calls, so a file that
/// shrinks while it is open is an Error; with a mapping it would raise SIGBUS.
class TokenFile {
 public:
  /// Checks everything but the ids; see read_all().
  explicit TokenFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Number of tokens; never 0.
  std::size_t size() const { return size_; }
  /// True if the file has llm.c's header.
  bool has_header() const { return data_start_ > 0; }
  /// Bytes of an id: 2 or 4.
  std::size_t id_bytes() const { return id_bytes_; }

  /// Reads one token with one system call; for single look-ups.
  std::int32_t operator[](std::size_t position) const;
  /// Fills `out` with the tokens from `start` on. After read_all(), tokens that are no longer those
  /// that it read are an Error (runtime). Thread-safe.
  void read(std::size_t start, std::span<std::int32_t> out) const;

  /// Reads the whole file once. An Error names the first id that is not below `vocab_size`. Returns
  /// the CRC-32 of all ids as they are stored; `before`: that of the files before this one.
  std::uint32_t read_all(std::int64_t vocab_size, std::uint32_t before = 0);

 private:
  /// Number of ids that share a checksum: 8 or 16 KiB, so that a short sequence is checked with few
  /// others and the checksums of a file are a two-thousandth of it.
  static constexpr std::size_t page_ids = 4096;

  /// Reads the bytes of ids.
  void read_stored(std::size_t start, std::span<std::byte> out) const;
  void check_page(std::size_t page, std::span<const std::byte> ids) const;

  File file_;
  std::uint64_t data_start_ = 0;
  std::size_t id_bytes_ = 2;
  std::size_t size_ = 0;
  std::vector<std::uint32_t> sums_;  ///< CRC-32 of each page, from read_all() on
};

// Writers of token files share these. A file of uint16 ids is headerless; one of uint32 is llm.c's.

/// Returns the byte at which the ids of a file begin.
std::uint64_t token_file_start(std::size_t id_bytes);
/// Returns what stands before the ids. Error if the header cannot say the number of tokens.
std::vector<std::byte> token_file_header(const std::filesystem::path& path, std::uint64_t tokens,
                                         std::size_t id_bytes);
/// Appends ids as a file stores them. `position`: that of the first, which an Error names if an id
/// does not fit.
void store_tokens(std::span<const std::int32_t> ids, std::size_t id_bytes,
                  const std::filesystem::path& path, std::uint64_t position,
                  std::vector<std::byte>& out);

/// Writes a headerless file of uint16 ids, or llm.c's of uint32, which appears under its name only
/// at finish(). Errors of the disk name the path. A writer destroyed without finish() leaves
/// nothing.
class TokenFileWriter {
 public:
  /// `id_bytes`: see token_bytes().
  explicit TokenFileWriter(std::filesystem::path path, std::size_t id_bytes = 2);

  /// Appends tokens. Error if an id does not fit.
  void append(std::span<const std::int32_t> ids);
  /// Number of tokens appended so far.
  std::size_t size() const { return size_; }
  /// Returns once the tokens are on the disk, not yet under the file's name. Nothing may be
  /// appended afterwards. Error if no token was appended, because TokenFile would refuse the file.
  void complete();
  /// Completes the file if complete() was not called; returns once it is durable under its name.
  void finish();

 private:
  void flush();

  DurableFile file_;
  std::size_t id_bytes_;
  std::vector<std::byte> buffer_;
  std::size_t size_ = 0;
  bool complete_ = false;
};

}  // namespace sluice
