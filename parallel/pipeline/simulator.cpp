#include "parallel/pipeline/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.h"
#include "parallel/pipeline/schedule_text.h"

namespace sluice {
namespace {

using Kind = Action::Kind;
constexpr double never = -1;

class Simulator {
 public:
  Simulator(const Schedule& schedule, const std::vector<StageCosts>& costs)
      : schedule_(schedule),
        costs_(costs),
        messages_(rank_of_stage(schedule)),
        kinds_(splits_backward(schedule) ? 3 : 2) {
    check_costs();
    check_actions();
    const std::size_t ranks = schedule.ranks.size();
    next_.resize(ranks);
    result_.ranks.resize(ranks);
    result_.busy.resize(ranks);
    ends_.resize(kinds_ * static_cast<std::size_t>(schedule.stages) *
                     static_cast<std::size_t>(schedule.micro_batches),
                 never);
  }

  Simulation run() {
    for (std::size_t rank = next_.size(); rank-- > 0;)
      awake_.push_back(rank);
    while (!awake_.empty()) {
      const std::size_t rank = awake_.back();
      awake_.pop_back();
      while (next_[rank] < schedule_.ranks[rank].size() && begin_next(rank))
        ++next_[rank];
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank)
      if (next_[rank] < schedule_.ranks[rank].size())
        fail(fmt::format("the schedule cannot run: rank {} never comes to {}", rank,
                         to_text(schedule_.ranks[rank][next_[rank]])),
             ErrorKind::usage);
    return std::move(result_);
  }

 private:
  void check_costs() const {
    if (costs_.size() != static_cast<std::size_t>(std::max(schedule_.stages, 0)))
      fail(fmt::format("{} stages have {} costs", schedule_.stages, costs_.size()),
           ErrorKind::usage);
    for (const StageCosts& cost : costs_)
      for (const double seconds : {cost.forward, cost.backward, cost.send, cost.weights})
        if (!std::isfinite(seconds) || seconds < 0)
          fail(fmt::format("a stage costs 0 seconds or more, not {}", seconds), ErrorKind::usage);
    if (kinds_ == 2) return;
    for (const StageCosts& cost : costs_)
      if (cost.weights > cost.backward)
        fail(fmt::format("the weights' gradients cost {} seconds of a backward that costs {}",
                         cost.weights, cost.backward),
             ErrorKind::usage);
  }

  /// Checks all actions before a table is made for them.
  void check_actions() const {
    std::int64_t computing = 0;
    for (const auto& row : schedule_.ranks)
      for (const Action& action : row) {
        if (action.stage < 0 || action.stage >= schedule_.stages || action.micro_batch < 0 ||
            action.micro_batch >= schedule_.micro_batches)
          fail(fmt::format("{} is outside of {} stages and {} micro-batches", to_text(action),
                           schedule_.stages, schedule_.micro_batches),
               ErrorKind::usage);
        computing += action.computes() ? 1 : 0;
      }
    const std::int64_t wanted =
        static_cast<std::int64_t>(kinds_) * schedule_.stages * std::max(schedule_.micro_batches, 0);
    if (computing != wanted)
      fail(fmt::format("{} stages and {} micro-batches have {} forwards and backwards{}, not {}",
                       schedule_.stages, schedule_.micro_batches, wanted,
                       kinds_ == 3 ? " in two parts" : "", computing),
           ErrorKind::usage);
  }

  double& end_of(const Action& action) {
    const auto stage = static_cast<std::size_t>(action.stage);
    const auto batch = static_cast<std::size_t>(action.micro_batch);
    const auto kind = static_cast<std::size_t>(action.kind);  // those that compute come first
    return ends_[kind * (ends_.size() / kinds_) +
                 stage * static_cast<std::size_t>(schedule_.micro_batches) + batch];
  }
  const StageCosts& costs_of(const Action& action) const {
    return costs_[static_cast<std::size_t>(action.stage)];
  }

  /// Begins the rank's next action and computes when it ends; returns false if it cannot begin yet.
  bool begin_next(std::size_t rank) {
    const Action& action = schedule_.ranks[rank][next_[rank]];
    if (!action.computes()) return true;
    auto& spans = result_.ranks[rank];
    double start = spans.empty() ? 0 : spans.back().end;
    if (action.kind == Kind::backward &&
        end_of({Kind::forward, action.stage, action.micro_batch}) == never)
      return false;
    if (const auto producer = messages_.producer(action)) {
      const double end = end_of(*producer);
      if (end == never) return false;
      start = std::max(start, end + (messages_.received_by(action) ? costs_of(*producer).send : 0));
    }
    const auto& costs = costs_of(action);
    const double seconds = costs.of(action.kind, kinds_ == 3);
    spans.push_back({action, start, start + seconds});
    end_of(action) = start + seconds;
    result_.busy[rank] += seconds;
    result_.makespan = std::max(result_.makespan, start + seconds);
    if (const auto send = messages_.sent_by(action))
      awake_.push_back(static_cast<std::size_t>(messages_.rank_of(counterpart(*send).stage)));
    return true;
  }

  const Schedule& schedule_;
  const std::vector<StageCosts>& costs_;
  const Messages messages_;
  const std::size_t kinds_;           ///< number of kinds that compute
  std::vector<std::size_t> next_{};   ///< each rank's next action
  std::vector<std::size_t> awake_{};  ///< ranks that may be able to go on
  std::vector<double> ends_{};  ///< end times of all forwards, then of all backwards and so on
  Simulation result_{};
};

double fraction(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

}  // namespace

double Simulation::bubble(int rank) const {
  return fraction(makespan - busy[static_cast<std::size_t>(rank)], makespan);
}

double Simulation::bubble() const {
  const double all = makespan * static_cast<double>(busy.size());
  return fraction(all - std::accumulate(busy.begin(), busy.end(), 0.0), all);
}

Simulation simulate(const Schedule& schedule, const std::vector<StageCosts>& costs) {
  return Simulator(schedule, costs).run();
}

BubbleSplit split_bubble(const Schedule& schedule, const std::vector<StageCosts>& costs) {
  StageCosts mean{.forward = 0, .backward = 0, .weights = 0};
  auto free_messages = costs;
  for (StageCosts& cost : free_messages) {
    cost.send = 0;
    mean.forward += cost.forward / static_cast<double>(costs.size());
    mean.backward += cost.backward / static_cast<double>(costs.size());
    mean.weights += cost.weights / static_cast<double>(costs.size());
  }
  const std::vector<StageCosts> equal(costs.size(), mean);
  BubbleSplit split{.schedule = simulate(schedule, equal).bubble()};
  const double without_messages = simulate(schedule, free_messages).bubble();
  split.imbalance = without_messages - split.schedule;
  split.communication = simulate(schedule, costs).bubble() - without_messages;
  return split;
}

}  // namespace sluice
