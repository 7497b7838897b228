#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/output.h"
#include "engine/io/safetensors.h"
#include "engine/io/section_sums.h"
#include "parallel/comm/communicator.h"
#include "parallel/data_parallel/model_state.h"

namespace sluice {

// Ranks write a file together in two phases, like MPI-IO's collective buffering: each writer
// gathers whole sections (SectionSums::section_bytes) from the ranks that keep their contents, then
// writes them. Every byte travels and is written once, and the file is that of a single rank. No
// two ranks write to one page of the disk's cache, which network file systems demand.

/// A safetensors file of a model's weights or optimizer state, yet to be written.
struct StateFile {
  struct Array {
    std::size_t entry = 0;               ///< in ModelState::entries()
    std::optional<std::size_t> field{};  ///< none: the weights
  };
  std::vector<std::byte> start{};       ///< the header
  std::vector<StoredTensor> tensors{};  ///< with offsets from the end of the header
  std::vector<Array> arrays{};          ///< what each tensor holds

  std::uint64_t bytes() const { return start.size() + (tensors.empty() ? 0 : tensors.back().end); }
};

/// Lays out a file of all weights, stored as `type`.
StateFile lay_out_weights(const ModelState& model, const SpaceLayout& whole, StoredType type);
/// Lays out a file of the optimizer state: a tensor for each field of each parameter.
StateFile lay_out_optimizer(const ModelState& model);
/// Returns the name of a tensor of that file.
std::string state_name(std::string_view field, std::string_view parameter);

/// The ranks that write to a folder which rank 0 has just made: those that see the same one there
/// (FileIdentity) and may write to it.
struct Writers {
  std::filesystem::path folder{};
  std::vector<int> ranks{};  ///< ascending; rank 0 is the first
};

/// Finds the writers. All ranks call it together; rank 0 gives the folder, which must not change
/// meanwhile. No folder: there are no writers.
Writers find_writers(Communicator& ranks, const std::filesystem::path& folder);

/// Bytes [begin, end) of a file.
struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};
/// Returns the part of a file of `bytes` bytes that a rank writes: whole sections, but for the
/// file's end. It is empty if the rank is no writer or the file has fewer sections than writers.
ByteRange range_of_writer(std::uint64_t bytes, int rank, const std::vector<int>& writers);

/// Calls `body` unless `error` has a text, and keeps the text of an exception there.
void keep_error(std::string& error, const std::function<void()>& body);

/// A writer's part of a file, from byte `offset` on. It is opened with the first byte, so a writer
/// without a part makes no file. After an error it is closed, keeps the error and ignores further
/// writes, since the other ranks go on.
class PartOutput final : public Output {
 public:
  PartOutput(std::filesystem::path path, std::uint64_t offset)
      : path_(std::move(path)), offset_(offset) {}

  std::string name() const override { return path_.string(); }
  void write(std::span<const std::byte> bytes) override;
  void finish() override;
  const std::string& error() const { return error_; }  ///< "": none

 private:
  std::filesystem::path path_;
  std::uint64_t offset_;
  std::optional<FileOutput> file_;
  std::string error_;
};

/// Returns on all ranks the error of the first rank that has one, and names the rank unless it is
/// rank 0; "" if none has.
std::string first_error(Communicator& ranks, const std::string& mine);

/// Writes the file. All ranks call it together. A writer's `mine` receives its part; the others
/// have nothing to write. Everybody waits for the slowest disk (keep_alive()).
void write_together(const StateFile& file, ModelState& model, Communicator& ranks,
                    const std::vector<int>& writers, Output& mine);

/// Gathers the checksums of the writers' parts. Only rank 0 receives those of the whole file.
SectionSums gather_sums(Communicator& ranks, const std::vector<int>& writers, std::uint64_t bytes,
                        const SectionSums& mine);

}  // namespace sluice
