#include "parallel/flight_recorder/rank_monitor.h"

#include <chrono>
#include <utility>

#include "parallel/flight_recorder/post_mortem.h"
#include "parallel/flight_recorder/shared_post_mortem.h"

namespace sluice {

RankMonitor::RankMonitor(const std::filesystem::path& folder, int rank, int size,
                         std::vector<int> here, const Injection& injection,
                         const Reactions& reactions)
    : folder_(folder),
      rank_(rank),
      size_(size),
      injection_(injection),
      on_stuck_(reactions.on_stuck),
      on_delay_(reactions.on_delay),
      ring_(folder, rank, size),
      watchdog_(folder, rank, size, reactions.on_failure,
                {.grace = std::chrono::milliseconds(1500), .here = std::move(here)}) {}

std::uint64_t RankMonitor::begin(std::string_view communicator, const Signature& signature) {
  return ring_.begin(communicator, signature);
}

void RankMonitor::wait(std::uint64_t number, double timeout) {
  watchdog_.begin(number,
                  Watchdog::Clock::now() + std::chrono::duration_cast<Watchdog::Clock::duration>(
                                               std::chrono::duration<double>(timeout)));
}

void RankMonitor::end(std::uint64_t number) {
  ring_.end(number);
  watchdog_.end(number);
}

void RankMonitor::slow(std::string_view sentence) {
  if (on_delay_) on_delay_(std::string(sentence));
}

void RankMonitor::gpu_is_stuck(std::string_view sentence) {
  if (on_stuck_) on_stuck_(std::string(sentence));
}

std::string RankMonitor::post_mortem() {
  return shared_post_mortem(folder_, size_);
}

std::string RankMonitor::whereabouts() const {
  const auto record = read_record(ring_.path());
  return record ? sluice::whereabouts(*record) : "where nobody knows";
}

}  // namespace sluice
