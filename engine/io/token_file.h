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

/// A file of token ids, read on demand. Two formats, both of little-endian uint16 ids:
///  - headerless, as nanoGPT writes;
///  - llm.c's: 256 int32 (magic 20240520, version 1, count, zeros), then `count` ids.
///
/// The magic number is also a legal beginning of a headerless file: the ids 55432 and 308. A file
/// that begins so is llm.c's when version and count agree with its size, and is refused otherwise:
/// a truncated llm.c file is far likelier than such a text, and its header would be trained on.
///
/// An unsuitable file is ErrorKind::usage. A file that shrinks while it is open is an Error, since
/// it is read with system calls; a mapping would end in SIGBUS.
class TokenFile {
 public:
  /// Checks all but the ids; see check_ids().
  explicit TokenFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Tokens; never 0.
  std::size_t size() const { return size_; }
  /// Whether it is llm.c's.
  bool has_header() const { return data_start_ > 0; }

  /// One system call each: for single look-ups.
  std::int32_t operator[](std::size_t position) const;
  /// Fills `out` with the tokens from `start` on. Safe from several threads at once.
  void read(std::size_t start, std::span<std::int32_t> out) const;

  /// Reads the whole file; Error names the first id that is not below `vocab_size`.
  void check_ids(std::int64_t vocab_size) const;
  /// The same of tokens that were read from `start` on, after check_ids() had found all good:
  /// somebody has changed the file since, which is an Error (runtime).
  void check_ids_again(std::size_t start, std::span<const std::int32_t> ids,
                       std::int64_t vocab_size) const;

 private:
  File file_;
  std::uint64_t data_start_ = 0;
  std::size_t size_ = 0;
};

/// Writes a headerless file, which appears under its name only at finish(). Errors of the disk name
/// the path; a writer destroyed without finish() leaves nothing.
class TokenFileWriter {
 public:
  explicit TokenFileWriter(std::filesystem::path path) : file_(std::move(path)) {}

  /// Error when an id is not in 0 to 65535.
  void append(std::span<const std::int32_t> ids);
  /// Tokens appended so far.
  std::size_t size() const { return size_; }
  /// Returns once the tokens are on the disk, not yet under the file's name; nothing may be
  /// appended afterwards. Error when no token was appended: TokenFile would refuse the file.
  void complete();
  /// Completes it if nobody has, and returns once the file is on the disk under its name.
  void finish();

 private:
  void flush();

  DurableFile file_;
  std::vector<std::uint16_t> buffer_;
  std::size_t size_ = 0;
};

}  // namespace sluice
