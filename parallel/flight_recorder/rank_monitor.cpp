#include "parallel/flight_recorder/rank_monitor.h"

#include <chrono>
#include <utility>

#include "parallel/flight_recorder/post_mortem.h"
#include "parallel/flight_recorder/shared_post_mortem.h"

namespace sluice {

namespace {

/// How long other computers may take to send their records.
constexpr std::chrono::milliseconds patience(500);
/// The same where this rank was asked to end: mpirun of Open MPI 4 kills it a second later.
constexpr std::chrono::milliseconds patience_at_end(200);

std::vector<int> ranks_beside(int rank, const std::vector<RankPlace>& places) {
  std::vector<int> beside;
  for (std::size_t other = 0; other < places.size(); ++other)
    if (places[other].first == places[static_cast<std::size_t>(rank)].first)
      beside.push_back(static_cast<int>(other));
  return beside;
}

}  // namespace

RankMonitor::RankMonitor(const std::filesystem::path& folder, int rank,
                         std::vector<RankPlace> places, std::unique_ptr<Mailbox> mailbox,
                         const Injection& injection, const Reactions& reactions)
    : folder_(folder),
      rank_(rank),
      size_(static_cast<int>(places.size())),
      injection_(injection),
      on_stuck_(reactions.on_stuck),
      on_delay_(reactions.on_delay),
      ring_(folder, rank, size_),
      exchange_(std::move(mailbox), folder, rank, places),
      watchdog_(folder, rank, size_, reactions.on_failure,
                {.grace = std::chrono::milliseconds(1500),
                 .here = ranks_beside(rank, places),
                 .records = [this] { return records(); },
                 .records_at_end = [this] { return exchange_.collect(patience_at_end); },
                 .ending = exchange_.several_hosts() ? reactions.ending : nullptr,
                 .on_lost_elsewhere = reactions.on_lost_elsewhere}) {}

std::vector<RankRecord> RankMonitor::records() {
  return exchange_.collect(patience);
}

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
  return shared_post_mortem(folder_, size_, std::chrono::seconds(2), [this] { return records(); });
}

std::string RankMonitor::whereabouts() const {
  const auto record = read_record(ring_.path());
  return record ? sluice::whereabouts(*record) : "where nobody knows";
}

}  // namespace sluice
