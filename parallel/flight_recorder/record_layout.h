#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <type_traits>

#include "parallel/comm/backend/signature.h"
#include "parallel/flight_recorder/flight_recorder.h"

namespace sluice {

// The bytes of a ring file, as they lie in the file. They contain no pointers, and every text is
// zero-filled to its end.

/// Written once, with `magic` last: a file without it is not ready.
struct RecordHeader {
  static constexpr std::uint64_t magic_value = 0x31474e4952434c53;  // "SLCRING1"
  static constexpr std::uint32_t version_value = 2;

  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t slots = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint32_t unused = 0;
  std::int64_t started = 0;
  std::uint64_t process_started = 0;
  std::uint64_t pid_namespace = 0;
  std::array<char, 72> host{};
};

/// `version` is odd while the rest is being changed. If it stays odd, the process was killed at
/// that moment.
struct RecordStatus {
  std::uint64_t version = 0;
  std::int64_t ended = 0;
  std::uint32_t outcome = 0;
  std::array<char, 108> note{};
  std::array<char, 1024> message{};
  std::array<char, 48> gpu{};  ///< empty: it computes on the CPU
};

struct RecordSlot {
  std::uint64_t version = 0;  ///< as above; 0: never used
  std::uint64_t number = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;  ///< the only field that changes without `version`
  std::array<char, FlightRecorder::communicator_bytes> communicator{};
  Signature signature;
};

struct RecordLayout {
  RecordHeader header;
  RecordStatus status;
  std::array<RecordSlot, FlightRecorder::operations_kept> slots;
};

static_assert(sizeof(RecordHeader) == 128 && sizeof(RecordSlot) == 112);
static_assert(sizeof(RecordStatus) == 1200 && sizeof(RecordLayout) == 128 + 1200 + 256 * 112);
static_assert(std::is_trivially_copyable_v<RecordLayout>);
static_assert(sizeof(RecordLayout) <= FlightRecorder::bytes);

/// Copies a ring file without torn parts; none if it is not there or has another size.
std::optional<RecordLayout> copy_of_record(const std::filesystem::path& path);

/// Returns what such bytes mean, but for RankRecord::process; none if they are no record.
std::optional<RankRecord> parse_record(const RecordLayout& bytes);

}  // namespace sluice
