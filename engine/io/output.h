#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "engine/io/durable.h"
#include "engine/io/file.h"

namespace sluice {

/// Receives the bytes of a file, front to back.
class Output {
 public:
  virtual ~Output() = default;

  /// Name for messages.
  virtual std::string name() const = 0;
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// Called after the last byte.
  virtual void finish() = 0;
};

/// Writes to a file and syncs it as it goes, so that the end of a large file does not block others
/// for minutes, and at finish(). Its directory is not synced. Until finish() the file is partial.
class FileOutput final : public Output {
 public:
  explicit FileOutput(std::filesystem::path path) : file_(File::create(std::move(path))) {}
  /// Writes to a file that is open for writing.
  explicit FileOutput(File file) : file_(std::move(file)) {}

  std::string name() const override { return file_.path().string(); }
  void write(std::span<const std::byte> bytes) override;
  void finish() override;

 private:
  File file_;
  std::uint64_t unsynced_ = 0;
};

/// Writes a file that appears under its name at finish().
class DurableOutput final : public Output {
 public:
  explicit DurableOutput(std::filesystem::path path) : file_(std::move(path)) {}

  std::string name() const override { return file_.path().string(); }
  void write(std::span<const std::byte> bytes) override { file_.write(bytes); }
  void finish() override { file_.commit(); }

 private:
  DurableFile file_;
};

/// Discards everything; for a process that only helps another one to write.
class NoOutput final : public Output {
 public:
  std::string name() const override { return "a discarded file"; }
  void write(std::span<const std::byte>) override {}
  void finish() override {}
};

/// Fills a memory range of exactly the right size; any other size is an Error.
class MemoryOutput final : public Output {
 public:
  explicit MemoryOutput(std::span<std::byte> memory) : rest_(memory) {}

  std::string name() const override { return "a file in memory"; }
  void write(std::span<const std::byte> bytes) override;
  void finish() override;

 private:
  std::span<std::byte> rest_;
};

}  // namespace sluice
