#include "parallel/pipeline/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace sluice {
namespace {

/// How many messages may be under way on one link: one is being received while the next is
/// computed.
constexpr std::size_t messages_under_way = 2;

/// The ranks of a link's two stages in its communicator.
constexpr int below = 0, above = 1;

/// Starts the message of an action. Its sender and its receiver make the same call.
Handle pass(Communicator& link, const Tensor& data, const Action& action) {
  const bool forwards = computing_of(action).kind == Action::Kind::forward;
  return link.broadcast(
      data.view(), forwards ? below : above,
      {.label = fmt::format("{}{}", forwards ? "result " : "gradient ", action.micro_batch),
       .stream = data.stream()});
}

Timeline::Label label_of(const std::pair<int, int>& place) {
  return {place.first, place.second};
}

}  // namespace

StageLinks::StageLinks(const std::vector<int>& rank_of_stage, int rank, const MakeGroup& make)
    : outputs_(rank_of_stage.size()), gradients_(rank_of_stage.size()) {
  // Every rank makes its links in the order of the stages, so that no ranks wait in a circle.
  for (std::size_t stage = 0; stage + 1 < rank_of_stage.size(); ++stage) {
    const std::array members{rank_of_stage[stage], rank_of_stage[stage + 1]};
    if (members[0] == members[1] || (members[0] != rank && members[1] != rank)) continue;
    outputs_[stage] = make(members, 2 * stage, fmt::format("out {}>{}", stage, stage + 1));
    gradients_[stage] = make(members, 2 * stage + 1, fmt::format("grad {}<{}", stage, stage + 1));
  }
}

bool StageLinks::one_at_a_time() const {
  const auto does = [](const auto& link) { return link != nullptr && link->one_at_a_time(); };
  return std::ranges::any_of(outputs_, does) || std::ranges::any_of(gradients_, does);
}

PipelineExecutor::PipelineExecutor(const Schedule& lowered, int rank, std::vector<Stage*> stages,
                                   const StageLinks& links, Stash stash, DevicePtr device)
    : schedule_(lowered),
      rank_(rank),
      stages_(std::move(stages)),
      links_(links),
      stash_(stash),
      device_(std::move(device)),
      splits_(splits_backward(lowered)),
      in_turn_(links.one_at_a_time()) {
  check(static_cast<int>(stages_.size()) == schedule_.stages,
        "a pipeline needs as many stages as its schedule has");
  learns_ = std::ranges::any_of(schedule_.ranks[static_cast<std::size_t>(rank)],
                                [](const Action& a) { return a.kind == Action::Kind::backward; });
  if (in_turn_) turns_ = receive_turns(schedule_, rank_);
}

void PipelineExecutor::spill(std::size_t max_bytes, const DevicePtr& host) {
  check(stash_ == Stash::input && host != nullptr, "only stashed inputs can rest on the host");
  inputs_.emplace(device_, host, max_bytes);
  inputs_->set_timeline(timeline_);
}

void PipelineExecutor::set_timeline(Timeline* timeline) {
  timeline_ = timeline;
  if (inputs_) inputs_->set_timeline(timeline);
}

void PipelineExecutor::run(const Hooks& hooks) {
  const auto& row = schedule_.ranks[static_cast<std::size_t>(rank_)];
  auto turn = turns_.begin();
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (; turn != turns_.end() && turn->before == i; ++turn)
      start_receive(turn->receive);
    if (inputs_ && row[i].kind == Action::Kind::backward) {
      bring_back(flights_[{row[i].stage, row[i].micro_batch}]);
      prefetch_input_after(i);
    }
    perform(row[i], hooks);
  }
  for (auto& [link, messages] : sent_)
    for (const Sent& message : messages)
      message.handle->join();
  sent_.clear();
  flights_.clear();
}

void PipelineExecutor::perform(const Action& action, const Hooks& hooks) {
  using Kind = Action::Kind;
  const auto [kind, number, micro_batch] = action;
  const Position place{number, micro_batch};
  Flight& flight = flights_[place];
  switch (kind) {
    case Kind::forward:
      return forward(place, flight, hooks);
    case Kind::backward:
      return backward(place, flight, hooks);
    case Kind::weight_gradients:
      return add_weight_gradients(place, flight, hooks);
    case Kind::receive_input:
      return receive(flight.input, stage(number).input(micro_batch), action);
    case Kind::receive_gradient:
      return receive(flight.gradient, stage(number).output(micro_batch), action);
    case Kind::send_output:
      return send(*links_.outputs(number), std::exchange(flight.result, {}), action);
    case Kind::send_gradient:
      send(*links_.gradients(number - 1), std::exchange(flight.to_return, {}), action);
      if (!splits_) flights_.erase(place);
  }
}

void PipelineExecutor::receive(Received& into, const Stage::Boundary& boundary,
                               const Action& action) {
  into.data = Tensor::empty(device_, boundary.shape, boundary.dtype);
  if (!in_turn_) start_receive(action);
}

void PipelineExecutor::start_receive(const Action& action) {
  Flight& flight = flights_[{action.stage, action.micro_batch}];
  const bool input = action.kind == Action::Kind::receive_input;
  Received& into = input ? flight.input : flight.gradient;
  into.handle = pass(input ? *links_.outputs(action.stage - 1) : *links_.gradients(action.stage),
                     into.data, action);
}

void PipelineExecutor::send(Communicator& link, Tensor data, const Action& action) {
  auto& messages = sent_[&link];
  if (messages.size() == messages_under_way) {
    const Recorded span(messages.front().handle->done() ? nullptr : timeline_, "wait",
                        Timeline::Lane::compute, data.stream(), {action.stage, action.micro_batch});
    messages.front().handle->join();
    messages.pop_front();
  }
  const Handle handle = pass(link, data, action);
  messages.push_back({std::move(data), handle});
}

/// Makes the compute stream wait until the message has arrived.
void PipelineExecutor::arrive(Position place, Received& received) {
  if (!received.handle) return;
  const Recorded span(received.handle->done() ? nullptr : timeline_, "wait",
                      Timeline::Lane::compute, device_->stream(), label_of(place));
  std::exchange(received.handle, nullptr)->join();
}

Tensor PipelineExecutor::compute(Position place, const Flight& flight) {
  return stage(place.first).forward(place.second, flight.input.data);
}

void PipelineExecutor::put_away(Flight& flight) {
  if (!inputs_ || !flight.input.data) return;
  flight.stashed = inputs_->put(std::exchange(flight.input.data, {}));
}

void PipelineExecutor::bring_back(Flight& flight) {
  if (!flight.stashed) return;
  flight.input.data = inputs_->take(*std::exchange(flight.stashed, std::nullopt));
  flight.input.data.set_requires_grad(true);
}

/// Brings back the input of the next backward after an action, while that action computes.
void PipelineExecutor::prefetch_input_after(std::size_t action) {
  const auto& row = schedule_.ranks[static_cast<std::size_t>(rank_)];
  const auto next = std::find_if(row.begin() + static_cast<std::ptrdiff_t>(action) + 1, row.end(),
                                 [](const Action& a) { return a.kind == Action::Kind::backward; });
  if (next == row.end()) return;
  const auto flight = flights_.find({next->stage, next->micro_batch});
  if (flight != flights_.end() && flight->second.stashed)
    inputs_->prefetch(*flight->second.stashed);
}

void PipelineExecutor::forward(Position place, Flight& flight, const Hooks& hooks) {
  arrive(place, flight.input);
  if (flight.input.data && learns_) flight.input.data.set_requires_grad(true);
  const bool again = learns_ && stash_ == Stash::input;
  // The last stage computes its loss only once, together with its backward.
  if (again && last(place.first)) return put_away(flight);
  Tensor result;
  {
    const Recorded span(timeline_, "forward", Timeline::Lane::compute, device_->stream(),
                        label_of(place));
    std::optional<NoGrad> unrecorded;
    if (again || !learns_) unrecorded.emplace();
    result = compute(place, flight);
  }
  if (!learns_) flight.input.data = {};
  if (again) put_away(flight);
  if (last(place.first)) {
    hooks.loss(place.second, result);
    if (learns_) flight.result = std::move(result);
    return;
  }
  if (learns_ && !again) flight.output = edge_to(result);
  if (here(place.first + 1)) {
    flights_[{place.first + 1, place.second}].input.data = result.detach();
  } else {
    flight.result = result.detach();
  }
}

void PipelineExecutor::backward(Position place, Flight& flight, const Hooks& hooks) {
  arrive(place, flight.gradient);
  const auto [number, micro_batch] = place;
  if (stash_ == Stash::input) {
    const Recorded span(timeline_, "forward", Timeline::Lane::compute, device_->stream(),
                        label_of(place));
    Tensor result = compute(place, flight);
    if (last(number)) {
      hooks.loss(micro_batch, result);
      flight.result = std::move(result);
    } else {
      flight.output = edge_to(result);
    }
  }
  hooks.before_backward(number, micro_batch);
  {
    const Recorded span(timeline_, "backward", Timeline::Lane::compute, device_->stream(),
                        label_of(place));
    DeferredGradients* const later = splits_ ? &flight.weights : nullptr;
    if (last(number))
      sluice::backward(std::exchange(flight.result, {}), {}, later);
    else
      sluice::backward(std::exchange(flight.output, {}), std::exchange(flight.gradient.data, {}),
                       later);
  }
  if (hooks.after_backward && !splits_) hooks.after_backward(number, micro_batch);
  if (number > 0) {
    const Tensor gradient = flight.input.data.grad();
    flight.input.data = {};
    if (!here(number - 1)) {
      flight.to_return = gradient;
      return;
    }
    flights_[{number - 1, micro_batch}].gradient.data = gradient;
  }
  if (!splits_) flights_.erase(place);
}

void PipelineExecutor::add_weight_gradients(Position place, Flight& flight, const Hooks& hooks) {
  {
    const Recorded span(timeline_, span_name(Action::Kind::weight_gradients),
                        Timeline::Lane::compute, device_->stream(), label_of(place));
    flight.weights.add(place.second + 1 == schedule_.micro_batches);
  }
  if (hooks.after_backward) hooks.after_backward(place.first, place.second);
  flights_.erase(place);
}

}  // namespace sluice
