#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "engine/io/file.h"

namespace sluice {

/// Takes the bytes of a file, front to back.
class Output {
 public:
  virtual ~Output() = default;

  /// For messages.
  virtual std::string name() const = 0;
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// After the last byte.
  virtual void finish() = 0;
};

/// Synced on the way, so that the end of a large file does not keep others waiting for minutes, and
/// when it is finished; its directory is not. Unfinished it is a partial file.
class FileOutput final : public Output {
 public:
  explicit FileOutput(std::filesystem::path path) : file_(File::create(std::move(path))) {}

  std::string name() const override { return file_.path().string(); }
  void write(std::span<const std::byte> bytes) override;
  void finish() override;

 private:
  File file_;
  std::uint64_t unsynced_ = 0;
};

/// Keeps nothing: for a process that only helps another to write.
class NoOutput final : public Output {
 public:
  std::string name() const override { return "a discarded file"; }
  void write(std::span<const std::byte>) override {}
  void finish() override {}
};

/// Fills memory of the right size; Error if it is not.
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
