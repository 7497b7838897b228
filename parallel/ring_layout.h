#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "parallel/ring_file.h"
#include "parallel/signature.h"

namespace sluice {

// A ring file's bytes, as they lie in the file. Nothing here points anywhere, and every text is
// zero-filled to its end.

/// Written once, `magic` last: a file without it is not ready.
struct RingHeader {
  static constexpr std::uint64_t magic_value = 0x31474e4952434c53;  // "SLCRING1"
  static constexpr std::uint32_t version_value = 1;

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

/// `version` is odd while the rest is being changed; one that stays odd tells of a process that was
/// killed at that moment.
struct RingStatus {
  std::uint64_t version = 0;
  std::int64_t ended = 0;
  std::uint32_t outcome = 0;
  std::array<char, 108> note{};
  std::array<char, 1024> message{};
};

struct RingSlot {
  std::uint64_t version = 0;  ///< as above; 0: never used
  std::uint64_t number = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;  ///< alone changes without `version`
  std::array<char, RingFile::communicator_bytes> communicator{};
  Signature signature;
};

struct RingLayout {
  RingHeader header;
  RingStatus status;
  std::array<RingSlot, RingFile::operations_kept> slots;
};

static_assert(sizeof(RingHeader) == 128 && sizeof(RingSlot) == 112);
static_assert(sizeof(RingStatus) == 1152 && sizeof(RingLayout) == 128 + 1152 + 256 * 112);
static_assert(std::is_trivially_copyable_v<RingLayout>);

}  // namespace sluice
