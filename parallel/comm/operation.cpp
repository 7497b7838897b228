#include "parallel/comm/operation.h"

#include <chrono>
#include <thread>

#include "parallel/comm/communicator.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

/// A rank first polls for messages without pause, since most have arrived by then. Afterwards it
/// sleeps between polls and leaves the core to ranks that compute.
constexpr int spins = 200;
constexpr auto nap = std::chrono::microseconds(50);

}  // namespace

Operation::Operation(Communicator& communicator, const Signature& signature)
    : communicator_(communicator), signature_(signature) {}

bool Operation::advance() {
  // Signatures are checked first: if they differ, the received data is meaningless.
  checked_ = !check_ || check_->advance();
  over_ = work_->advance() && (!check_ || check_->over());
  return over_;
}

bool Operation::done() {
  if (!work_) std::rethrow_exception(communicator_.failure_);
  if (!over_) communicator_.progress();
  return over_;
}

/// Called when the data failed to arrive, perhaps since ranks started different operations. Waits a
/// little for the signatures, which say more, and throws if they differ.
void Operation::explain_failure() {
  if (!check_) return;
  const auto end = Clock::now() + std::chrono::seconds(2);
  while (Clock::now() < end && !check_->advance())
    std::this_thread::sleep_for(nap);
}

bool Operation::may_be_joined() {
  if (done()) return true;
  return work_->joinable() && (checked_ || communicator_.has_agreed_on(signature_));
}

template <class Condition>
void Operation::wait_until(Condition&& condition) {
  Communicator& c = communicator_;
  bool holds = false;
  for (int i = 0; i < spins && !holds; ++i)
    holds = condition();
  if (over_) return;
  // The watchdog also sees to an operation that is left under way.
  if (c.monitor_) c.monitor_->wait(number_, c.options_.timeout);
  const auto deadline = Clock::now() + std::chrono::duration<double>(c.options_.timeout);
  while (!holds && !condition()) {
    if (Clock::now() > deadline) c.time_out(*this);
    std::this_thread::sleep_for(nap);
  }
}

void Operation::wait() {
  wait_until([this] { return done(); });
  work_->join();
}

void Operation::join() {
  wait_until([this] { return may_be_joined(); });
  work_->join();
}

}  // namespace sluice
