#include "parallel/comm/keep_alive.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// The state of this rank's work, for the thread that tells the others of it.
class OwnWork {
 public:
  enum class State : std::uint8_t { going, done, failed };

  void set(State state) {
    {
      const std::lock_guard lock(mutex_);
      state_ = state;
    }
    changed_.notify_one();
  }
  /// Waits until the work is over, but not longer than `most`.
  State wait(Seconds most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [this] { return state_ != State::going; });
    return state_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::going;
};

/// Gathers from all ranks, several times per timeout, whether they still work, until none does.
void answer(Communicator& ranks, std::string_view label, OwnWork& mine) {
  const double timeout = ranks.options().timeout;
  const Seconds pause(timeout / 4);
  Seconds slow(timeout);
  std::optional<Clock::time_point> start;  // when the first rank was done
  while (true) {
    const OwnWork::State state = mine.wait(pause);
    if (state == OwnWork::State::failed) return;
    const auto working =
        ranks.gather_values<std::uint8_t>(state == OwnWork::State::going ? 1 : 0, label);
    const auto first = std::ranges::find(working, 1);
    if (first == working.end()) return;
    if (!start && std::ranges::find(working, 0) != working.end()) start = Clock::now();
    if (!start || Clock::now() - *start < slow) continue;
    slow *= 2;
    if (ranks.monitor() != nullptr)
      ranks.monitor()->slow(fmt::format(
          "ranks have waited {:.0f} s for rank {} at '{}'; is a disk slow, or not there?",
          Seconds(Clock::now() - *start).count(), first - working.begin(), label));
  }
}

}  // namespace

void keep_alive(Communicator& ranks, std::string_view label, const std::function<void()>& work) {
  if (ranks.size() == 1 || ranks.backend() == "none") {
    if (work) work();
    return;
  }
  ranks.finish();
  OwnWork mine;
  if (!work) {
    mine.set(OwnWork::State::done);
    return answer(ranks, label, mine);
  }
  auto answers = std::async(std::launch::async, [&] { answer(ranks, label, mine); });
  try {
    work();
  } catch (...) {
    mine.set(OwnWork::State::failed);
    answers.wait();
    throw;
  }
  mine.set(OwnWork::State::done);
  answers.get();
}

}  // namespace sluice
