#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/process_state.h"
#include "parallel/comm/backend/signature.h"

namespace sluice {

struct RecordLayout;

/// Keeps a record of a rank's latest actions in the file FOLDER/rank-R.ring: its last 256
/// operations, a note of what it does between them, and how it ended. The file is mapped: a record
/// is a few stores to memory, no call of the system, and survives a kill of the process at any
/// moment. Where somebody truncates the file, the rank goes on without a record. Thread-safe.
class FlightRecorder {
 public:
  static constexpr std::size_t operations_kept = 256;
  static constexpr std::size_t communicator_bytes = 16;        ///< longer names are cut
  static constexpr std::size_t bytes = std::size_t{32} << 10;  ///< of a file, at most

  /// The folder must exist and belong to this job alone: a file of an earlier job would be taken
  /// for a rank that is gone, so an existing file of this rank is an Error (usage). All bytes are
  /// reserved here, so that a full disk is an Error now and loses no record later.
  FlightRecorder(const std::filesystem::path& folder, int rank, int size);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;
  ~FlightRecorder();  ///< does not record how the rank ended; call finish() or fail() for that

  const std::filesystem::path& path() const { return path_; }

  /// Records that an operation starts and returns its number in this process, from 0. Reports match
  /// operations of different ranks by communicator name and Signature::sequence. So groups without
  /// a common rank need different names ("dp 0", "dp 1"). The group of all ranks is called "world".
  std::uint64_t begin(std::string_view communicator, const Signature& signature);
  /// Records that this rank's part of the operation is complete. Ignored if 256 operations have
  /// begun since.
  void end(std::uint64_t number);
  /// Records the GPU that the rank computes on, by its UUID.
  void set_gpu(std::string_view uuid);
  /// Records what the rank does outside operations: "step 12", "saving".
  void note(std::string_view text);
  /// Records that the rank ended well, so that it does not count as lost.
  void finish();
  /// Records that the rank ends because of an error, which it has reported to the user.
  void fail(std::string_view message);

 private:
  /// Makes a change that readers see as a whole or not at all.
  template <typename Part, typename Change>
  void change_as_one(Part& part, Change change);
  template <typename Change>
  void change_status(Change change);

  std::filesystem::path path_;
  RecordLayout* record_ = nullptr;  ///< the mapped file
  std::mutex mutex_;                ///< held by writers
  std::uint64_t begun_ = 0;
};

/// An operation as recorded. Times are nanoseconds of the system clock.
struct RecordedOperation {
  std::uint64_t number = 0;  ///< number in its process
  std::string communicator;
  Signature signature;
  std::int64_t begin = 0;
  std::int64_t end = 0;  ///< 0: it never completed

  bool open() const { return end == 0; }
};

/// The contents of a ring file.
struct RankRecord {
  enum class Outcome : std::uint32_t { none, finished, failed };

  int rank = 0;
  int size = 1;
  ProcessId id;
  std::string gpu;                               ///< its UUID; empty: none
  ProcessState process = ProcessState::unknown;  ///< when the file was read
  std::int64_t started = 0;
  Outcome outcome = Outcome::none;
  std::int64_t ended = 0;  ///< when finish() or fail() was called
  std::string note;
  std::string message;                        ///< given to fail()
  bool silent = false;                        ///< its host did not answer (RecordExchange)
  std::vector<RecordedOperation> operations;  ///< the last ones, oldest first

  /// Returns true if the process has ended without recording it.
  bool lost() const { return process == ProcessState::gone && outcome == Outcome::none; }
};

/// Reads a ring file. Returns none if it does not exist or is not a complete ring file. Its rank
/// may be writing to it: operations whose record changes meanwhile are left out.
std::optional<RankRecord> read_record(const std::filesystem::path& path);

/// Reads all ring files of a folder, ordered by rank.
std::vector<RankRecord> read_records(const std::filesystem::path& folder);

std::filesystem::path record_path(const std::filesystem::path& folder, int rank);

}  // namespace sluice
