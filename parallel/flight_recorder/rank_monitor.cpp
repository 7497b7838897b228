#include "parallel/flight_recorder/rank_monitor.h"

#include <chrono>
#include <utility>

#include "parallel/flight_recorder/post_mortem.h"
#include "parallel/flight_recorder/shared_post_mortem.h"

namespace sluice {

namespace {

/// How long other hosts may take to send their records.
constexpr std::chrono::milliseconds patience(500);
/// The same where this rank was asked to end: mpirun of Open MPI 4 kills it a second later.
constexpr std::chrono::milliseconds patience_at_end(200);

}  // namespace

RankMonitor::RankMonitor(std::shared_ptr<RecordExchange> exchange, const Injection& injection,
                         const Reactions& reactions)
    : exchange_(std::move(exchange)),
      injection_(injection),
      on_stuck_(reactions.on_stuck),
      on_delay_(reactions.on_delay),
      ring_(exchange_->folder(), exchange_->rank(), exchange_->size()),
      watchdog_(exchange_->folder(), exchange_->rank(), exchange_->size(), reactions.on_failure,
                {.grace = std::chrono::milliseconds(1500),
                 .here = exchange_->ranks_here(),
                 .records = [this] { return exchange_->collect(patience); },
                 .records_at_end = [this] { return exchange_->collect(patience_at_end); },
                 .ending = exchange_->several_hosts() ? reactions.ending : nullptr,
                 .on_lost_elsewhere = reactions.on_lost_elsewhere}) {}

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
  return shared_post_mortem(exchange_->folder(), exchange_->size(), std::chrono::seconds(2),
                            [this] { return exchange_->collect(patience); });
}

std::string RankMonitor::whereabouts() const {
  const auto record = read_record(ring_.path());
  return record ? sluice::whereabouts(*record) : "where nobody knows";
}

}  // namespace sluice
