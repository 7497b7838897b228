#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "parallel/comm/backend/signature.h"

namespace sluice {

/// Observes every operation of a process. It keeps a record that other processes can read, injects
/// faults for tests, and names the rank at fault when the ranks no longer agree.
class Monitor {
 public:
  /// Changes that an injected fault makes to an operation.
  enum class Fault : std::uint8_t { none, skip, mismatch, count, type };

  Monitor() = default;
  virtual ~Monitor() = default;
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Called before an operation starts. To inject a fault it may throw, or stop or end the process.
  virtual Fault before() { return Fault::none; }
  /// Called when an operation has started; returns its number.
  virtual std::uint64_t begin(std::string_view communicator, const Signature& signature) = 0;
  /// Called when the rank waits for this operation, or its stream does: end() must follow within
  /// `timeout` seconds.
  virtual void wait(std::uint64_t number, double timeout) = 0;
  virtual void end(std::uint64_t number) = 0;
  /// Called on any thread when ranks wait long for the work of one (keep_alive()).
  virtual void slow(std::string_view sentence) { static_cast<void>(sentence); }
  /// Called with an error's sentence when operations of NCCL were under way, so that kernels may
  /// occupy the GPU for ever. To free memory could wait for them, so this is the time to report the
  /// error and to end the process. If it returns, the error is thrown.
  virtual void gpu_is_stuck(std::string_view sentence) { static_cast<void>(sentence); }
  /// A sentence naming the rank that is behind and its operation; empty: nothing is known.
  virtual std::string post_mortem() { return {}; }
};

}  // namespace sluice
