#include "parallel/pipeline/messages.h"

namespace sluice {

using Kind = Action::Kind;

bool Messages::apart(int stage, int neighbour) const {
  const int stages = static_cast<int>(ranks_.size());
  if (neighbour < 0 || neighbour >= stages) return false;
  return rank_of(neighbour) >= 0 && rank_of(neighbour) != rank_of(stage);
}

std::optional<Action> Messages::producer(const Action& computing) const {
  const int stages = static_cast<int>(ranks_.size());
  const int stage = computing.stage + (computing.kind == Kind::forward ? -1 : 1);
  if (stage < 0 || stage >= stages) return std::nullopt;
  return Action{computing.kind, stage, computing.micro_batch};
}

std::optional<Action> Messages::received_by(const Action& computing) const {
  const bool forward = computing.kind == Kind::forward;
  if (!apart(computing.stage, computing.stage + (forward ? -1 : 1))) return std::nullopt;
  return Action{forward ? Kind::receive_input : Kind::receive_gradient, computing.stage,
                computing.micro_batch};
}

std::optional<Action> Messages::sent_by(const Action& computing) const {
  const bool forward = computing.kind == Kind::forward;
  if (!apart(computing.stage, computing.stage + (forward ? 1 : -1))) return std::nullopt;
  return Action{forward ? Kind::send_output : Kind::send_gradient, computing.stage,
                computing.micro_batch};
}

Action counterpart(const Action& message) {
  Action other = message;
  switch (message.kind) {
    case Kind::send_output:
      other.kind = Kind::receive_input;
      ++other.stage;
      break;
    case Kind::receive_input:
      other.kind = Kind::send_output;
      --other.stage;
      break;
    case Kind::send_gradient:
      other.kind = Kind::receive_gradient;
      --other.stage;
      break;
    case Kind::receive_gradient:
      other.kind = Kind::send_gradient;
      ++other.stage;
      break;
    case Kind::forward:
    case Kind::backward:
      break;
  }
  return other;
}

Action computing_of(const Action& message) {
  const bool forward = message.kind == Kind::send_output || message.kind == Kind::receive_input;
  return {forward ? Kind::forward : Kind::backward, message.stage, message.micro_batch};
}

}  // namespace sluice
