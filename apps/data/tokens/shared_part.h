#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "apps/data/tokens/prepared_folder.h"
#include "engine/io/durable.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/transport/mpi_file.h"

namespace sluice {

/// A token file that all ranks of the job write together: in each round first the ids of rank 0,
/// then those of rank 1, and so on. Rank 0 makes the file and gives it its name. An id of 4 bytes
/// is in a file of llm.c's form, which has 2^31 - 1 of them at most.
class SharedPart final : public PreparedPart {
 public:
  /// `ranks`: all of them, which must outlive this object.
  SharedPart(std::filesystem::path path, std::size_t id_bytes, Communicator& ranks)
      : path_(std::move(path)), id_bytes_(id_bytes), ranks_(ranks) {}
  /// Removes the temporary file unless it is complete: when a rank fails, mpirun kills the others.
  ~SharedPart() override;

  /// Keeps ids of this rank for the round. Error if an id does not fit.
  void append(std::span<const std::int32_t> ids) override;
  /// Writes the round's ids. All ranks call it together, and so complete().
  void end_round() override;
  void complete() override;
  void publish() override;
  std::size_t files() const override { return size_ > 0 ? 1 : 0; }

 private:
  void open();

  std::filesystem::path path_;
  std::size_t id_bytes_;
  Communicator& ranks_;
  std::filesystem::path temporary_;  ///< of all ranks
  std::optional<DurableFile> file_;  ///< of rank 0
  std::optional<MpiFile> shared_;    ///< none before the first id of any rank
  std::vector<std::byte> round_;
  std::uint64_t size_ = 0;  ///< ids of all ranks that are written
  bool complete_ = false;
};

}  // namespace sluice
