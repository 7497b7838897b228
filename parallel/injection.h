#pragma once

#include <cstdint>
#include <string>

#include "parallel/monitor.h"

namespace sluice {

/// A fault made on demand, to see that a job ends as it should: what one rank does instead of one
/// of its operations.
struct Injection {
  enum class Kind : std::uint8_t {
    none,
    stop,      ///< SIGSTOP: neither goes on nor ends
    exit,      ///< leaves with code 3, without a word
    kill,      ///< SIGKILL
    abort,     ///< ends by a signal of its own, as a failed assertion does
    segfault,  ///< likewise, as a wild pointer does
    error,     ///< throws Error
    memory,    ///< throws std::bad_alloc
    skip,      ///< does not start it
    mismatch,  ///< starts another collective
    count,     ///< starts it with another count
    type,      ///< starts it with elements of another type (of single bytes: as it is)
    slow       ///< first sleeps for ten minutes
  };

  int rank = -1;
  std::uint64_t operation = 0;  ///< of its process, counted from 0 over all communicators
  Kind kind = Kind::none;

  /// The fault that the operation with this number suffers here.
  Monitor::Fault apply(int rank_here, std::uint64_t number) const;
};

/// "rank=1,op=42,kind=stop"; empty: none. Throws Error (usage) naming what is wrong.
Injection parse_injection(const std::string& text);

}  // namespace sluice
