#pragma once

#include <cstdint>
#include <string>

#include "parallel/comm/monitor.h"

namespace sluice {

/// A fault injected on purpose, to test that a job ends as it should: one rank does this instead of
/// (or in) one of its operations.
struct Injection {
  enum class Kind : std::uint8_t {
    none,
    stop,      ///< SIGSTOP: the process neither goes on nor ends
    exit,      ///< exits with code 3 without a message
    kill,      ///< SIGKILL
    abort,     ///< ends by a signal of its own, as a failed assertion does
    segfault,  ///< likewise, as a wild pointer does
    error,     ///< throws Error
    memory,    ///< throws std::bad_alloc
    skip,      ///< does not start the operation
    mismatch,  ///< starts another collective
    count,     ///< starts it with another count
    type,      ///< starts it with elements of another type (single bytes: unchanged)
    slow       ///< first sleeps for ten minutes
  };

  int rank = -1;
  std::uint64_t operation = 0;  ///< number in its process, counted from 0 over all communicators
  Kind kind = Kind::none;

  /// Performs the fault if it is meant for operation `number` of this rank.
  Monitor::Fault apply(int rank_here, std::uint64_t number) const;
};

/// Parses "rank=1,op=42,kind=stop"; empty: none. Throws Error (usage) naming what is wrong.
Injection parse_injection(const std::string& text);

}  // namespace sluice
