#include "parallel/flight_recorder/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/post_mortem.h"

namespace sluice {

Watchdog::Watchdog(std::filesystem::path folder, int rank, int size, OnFailure on_failure,
                   Options options)
    : folder_(std::move(folder)),
      rank_(rank),
      size_(size),
      on_failure_(std::move(on_failure)),
      options_(std::move(options)) {
  for (const int other : options_.here)
    peers_[other];
  if (options_.here.empty())
    for (int other = 0; other < size; ++other)
      peers_[other];
  peers_.erase(rank);
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

void Watchdog::begin(std::uint64_t number, Clock::time_point deadline) {
  const std::lock_guard lock(mutex_);
  waits_[number] = {.begin = Clock::now(), .deadline = deadline};
}

void Watchdog::end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  waits_.erase(number);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_changed_.wait_for(lock, options_.period, [&] { return stop_; })) {
    const auto now = Clock::now();
    const auto wait = overdue(now);
    const bool waiting = !waits_.empty();
    lock.unlock();
    // Files are read without the lock, so that begin() and end() do not wait for it.
    if (wait || (waiting && lost_peer(now))) {
      on_failure_(sentence(wait, now), !wait);
      return;
    }
    look_elsewhere();
    lock.lock();
  }
}

std::optional<Watchdog::Wait> Watchdog::overdue(Clock::time_point now) const {
  for (const auto& [number, wait] : waits_)
    if (now > wait.deadline + options_.grace) return wait;
  return std::nullopt;
}

bool Watchdog::lost_peer(Clock::time_point now) {
  for (auto& [rank, peer] : peers_) {
    if (peer.reported) continue;
    // A ring is read once for the process id and again when the process is gone. Checking only the
    // process in between is meant to be cheap for many ranks; not measured.
    if (!peer.id) {
      const auto record = read_record(record_path(folder_, rank));
      if (!record) continue;
      peer.id = record->id;
    }
    const ProcessState state = state_of(*peer.id);
    if (state == ProcessState::unknown) peer.reported = true;
    if (state != ProcessState::gone) continue;
    const auto record = read_record(record_path(folder_, rank));
    if (!record || !record->lost()) {
      peer.reported = true;
      continue;
    }
    if (!peer.gone_since) peer.gone_since = now;
    if (now - *peer.gone_since > options_.lost_for) return true;
  }
  return false;
}

/// Looks once, when the process is asked to end.
void Watchdog::look_elsewhere() {
  if (ending_ || !options_.ending || !options_.ending()) return;
  ending_ = true;
  if (!is_held_up()) return;
  const auto records = options_.records_at_end();
  if (std::ranges::any_of(records, [](const RankRecord& r) { return r.lost() || r.silent; }))
    options_.on_lost_elsewhere(post_mortem(records, size_));
}

/// Returns true if an operation of this rank has lasted longer than is usual, and this rank is the
/// first of its host, which speaks for it.
bool Watchdog::is_held_up() const {
  constexpr std::int64_t usual = 300'000'000;  // nanoseconds
  for (const auto& [other, peer] : peers_)
    if (other < rank_ && peer.id && state_of(*peer.id) == ProcessState::running) return false;
  const auto record = read_record(record_path(folder_, rank_));
  const std::int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  return record && std::ranges::any_of(record->operations, [&](const RecordedOperation& o) {
           return o.open() && now - o.begin > usual;
         });
}

std::string Watchdog::sentence(const std::optional<Wait>& wait, Clock::time_point now) const {
  std::string text = shared_post_mortem(folder_, size_, std::chrono::seconds(2), options_.records);
  if (!wait) return text;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - wait->begin).count();
  return text + fmt::format("; rank {} gave up after {} s", rank_, seconds);
}

}  // namespace sluice
