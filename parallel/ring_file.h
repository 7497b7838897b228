#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/process_state.h"
#include "parallel/signature.h"

namespace sluice {

/// What a rank did last, in the file FOLDER/rank-R.ring: its last 256 operations, a note of what it
/// does between them, and how it ended. What was written is in the file at once and stays when the
/// process is killed at any moment; a power failure may lose it. Safe from several threads at once.
/// The file is written and not mapped: where somebody cuts it, the next record makes it whole
/// again, and no SIGBUS ends the rank. A record that cannot be written is passed over.
class RingFile {
 public:
  static constexpr std::size_t operations_kept = 256;
  static constexpr std::size_t communicator_bytes = 16;  ///< longer names are cut

  /// The folder must be there and belong to this job alone: a file of an earlier job would be
  /// taken for a rank that is gone, so one of this rank's name is an Error (usage). All bytes are
  /// reserved here, so that a full disk is an Error now and loses no record later.
  RingFile(const std::filesystem::path& folder, int rank, int size);
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;
  ~RingFile();  ///< says nothing of how the rank ended: finish() or fail() does

  const std::filesystem::path& path() const { return path_; }

  /// An operation starts; returns its number in this process, from 0. Ranks are compared by the
  /// communicator's name and the signature's sequence, so groups that do not share a rank need
  /// different names ("dp 0", "dp 1"), and the one of all ranks is called "world".
  std::uint64_t begin(std::string_view communicator, const Signature& signature);
  /// The operation is complete here. One that is no longer among the last 256 is passed over.
  void end(std::uint64_t number);
  /// What the rank does outside operations: "step 12", "saving".
  void note(std::string_view text);
  /// The rank ended well: it may go without anybody calling it lost.
  void finish();
  /// The rank ends because of an error that it told the user of.
  void fail(std::string_view message);

 private:
  struct Image;
  /// Writes a part of the image to its place in the file.
  template <typename Part>
  void put(const Part& part);
  /// A reader takes what changes as a whole or not at all.
  template <typename Part, typename Change>
  void change_as_one(Part& part, Change change);
  template <typename Change>
  void change_status(Change change);

  std::filesystem::path path_;
  std::unique_ptr<Image> image_;  ///< what the file holds
  int descriptor_ = -1;
  std::mutex mutex_;  ///< of writers
  std::uint64_t begun_ = 0;
};

/// Times are nanoseconds of the system's clock.
struct RecordedOperation {
  std::uint64_t number = 0;  ///< in its process
  std::string communicator;
  Signature signature;
  std::int64_t begin = 0;
  std::int64_t end = 0;  ///< 0: it never completed

  bool open() const { return end == 0; }
};

/// A ring file, read.
struct RankRecord {
  enum class Outcome : std::uint32_t { none, finished, failed };

  int rank = 0;
  int size = 1;
  ProcessId id;
  ProcessState process = ProcessState::unknown;  ///< when the file was read
  std::int64_t started = 0;
  Outcome outcome = Outcome::none;
  std::int64_t ended = 0;  ///< when finish() or fail() was called
  std::string note;
  std::string message;                        ///< of fail()
  std::vector<RecordedOperation> operations;  ///< the last ones, oldest first

  /// Ended, and told nobody.
  bool lost() const { return process == ProcessState::gone && outcome == Outcome::none; }
};

/// Nothing when there is no such file or it is not one of RingFile's, whole. It may be written to
/// meanwhile: an operation whose record changes at this moment is left out.
std::optional<RankRecord> read_ring(const std::filesystem::path& path);

/// All of a folder, by rank.
std::vector<RankRecord> read_rings(const std::filesystem::path& folder);

std::filesystem::path ring_path(const std::filesystem::path& folder, int rank);

}  // namespace sluice
