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
  const bool checked = !check_ || check_->advance();
  over_ = work_->advance() && checked;
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

void Operation::wait() {
  Communicator& c = communicator_;
  for (int i = 0; i < spins && !done(); ++i)
    ;
  if (!over_) {
    if (c.monitor_) c.monitor_->wait(number_, c.options_.timeout);
    const auto deadline = Clock::now() + std::chrono::duration<double>(c.options_.timeout);
    while (!done()) {
      if (Clock::now() > deadline) c.time_out(*this);
      std::this_thread::sleep_for(nap);
    }
  }
  work_->join();
}

}  // namespace sluice
