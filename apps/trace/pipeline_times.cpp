#include "apps/trace/pipeline_times.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace sluice {
namespace {

using Kind = Action::Kind;
using Place = std::tuple<Kind, int, int>;

bool computes(const RankSpan& span) {
  constexpr Kind kinds[] = {Kind::forward, Kind::backward, Kind::weight_gradients};
  return span.stage >= 0 && std::ranges::find(kinds, span.name(), span_name) != std::end(kinds);
}

bool same_place(const RankSpan& a, const RankSpan& b) {
  return a.rank == b.rank && a.stage == b.stage && a.micro_batch == b.micro_batch;
}

}  // namespace

struct PipelineTimes::Reading {
  double first = INFINITY, last = -INFINITY, busy = 0;
  std::map<Place, double> ends{};           ///< of computations
  std::map<Place, double> arrivals{};       ///< of messages that an action waited for
  std::map<Place, double> forward_again{};  ///< milliseconds
};

PipelineTimes::PipelineTimes(Schedule schedule, bool again)
    : schedule_(std::move(schedule)),
      messages_(rank_of_stage(schedule_)),
      again_(again),
      stages_(static_cast<std::size_t>(schedule_.stages)) {}

void PipelineTimes::read(const RankSpan& span, const RankSpan* before, Reading& reading) {
  const auto place = [&](Kind kind) { return Place{kind, span.stage, span.micro_batch}; };
  reading.first = std::min(reading.first, span.start);
  reading.last = std::max(reading.last, span.end());
  reading.busy += span.length;
  if (span.name() == span_name(Kind::weight_gradients))
    return stage(span.stage).weights.add(span.length);
  // The last stage runs forward once, with its backward; with `again_` other stages run it twice.
  const bool last = span.stage + 1 == schedule_.stages;
  const bool backward = span.name() == "backward";
  const bool second = again_ && !backward && (last || reading.ends.contains(place(Kind::forward)));
  if (before != nullptr && before->name() == "wait" && same_place(span, *before))
    reading.arrivals[place((backward || second) && !last ? Kind::backward : Kind::forward)] =
        before->end();
  if (second) {
    reading.forward_again[place(Kind::backward)] = span.length;
  } else if (backward) {
    stage(span.stage).backward.add(span.length + reading.forward_again[place(Kind::backward)]);
    reading.ends[place(Kind::backward)] = span.end();
  } else {
    stage(span.stage).forward.add(span.length);
    reading.ends[place(Kind::forward)] = span.end();
  }
}

/// Takes the median of a step: a message may take long when the system gives a core to others.
void PipelineTimes::count_messages(const Reading& reading) {
  std::map<int, std::vector<double>> taken;
  for (const auto& [place, arrival] : reading.arrivals) {
    const auto [kind, number, micro_batch] = place;
    const auto producer = messages_.producer({kind, number, micro_batch});
    if (!producer || !messages_.received_by({kind, number, micro_batch})) continue;
    const auto end = reading.ends.find({producer->kind, producer->stage, producer->micro_batch});
    if (end != reading.ends.end())
      taken[producer->stage].push_back(std::max(0.0, arrival - end->second));
  }
  for (auto& [number, all] : taken) {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::ranges::nth_element(all, middle);
    stage(number).message.add(*middle);
  }
}

void PipelineTimes::add(std::span<const RankSpan> spans) {
  const auto ranks = static_cast<int>(schedule_.ranks.size());
  std::map<int, Reading> replicas;
  const RankSpan* before = nullptr;
  for (const RankSpan& span : spans) {
    if (computes(span)) read(span, before, replicas[span.rank / ranks]);
    before = &span;
  }
  if (replicas.empty()) return;
  for (const auto& [replica, reading] : replicas) {
    busy_ += reading.busy;
    available_ += ranks * (reading.last - reading.first);
    count_messages(reading);
  }
  ++steps_;
}

double PipelineTimes::bubble() const {
  return available_ > 0 ? 1 - busy_ / available_ : 0;
}

std::vector<StageCosts> PipelineTimes::costs() const {
  std::vector<StageCosts> costs;
  for (const Stage& stage : stages_)
    costs.push_back({.forward = stage.forward.value(),
                     .backward = stage.backward.value() + stage.weights.value(),
                     .send = stage.message.value(),
                     .weights = stage.weights.value()});
  return costs;
}

}  // namespace sluice
