#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "parallel/signature.h"

namespace sluice {

/// Sees every operation of a process: keeps a record that others can read, makes the faults that
/// were asked for, and knows what to say when the ranks have lost each other.
class Monitor {
 public:
  /// What an injected fault makes of an operation.
  enum class Fault : std::uint8_t { none, skip, mismatch, count, type };

  Monitor() = default;
  virtual ~Monitor() = default;
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Before an operation is started. May throw, stop or end the process if that was asked for.
  virtual Fault before() { return Fault::none; }
  /// It has been started; returns its number.
  virtual std::uint64_t begin(std::string_view communicator, const Signature& signature) = 0;
  /// The rank has nothing left to do but to wait for it, for so many seconds.
  virtual void wait(std::uint64_t number, double timeout) = 0;
  virtual void end(std::uint64_t number) = 0;
  /// A sentence about who is behind, at what; empty: nothing is known.
  virtual std::string post_mortem() { return {}; }
};

}  // namespace sluice
