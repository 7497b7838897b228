#include "kernels/base/error.h"
#include "parallel/pipeline/messages.h"
#include "parallel/pipeline/schedule.h"

namespace sluice {

Schedule lower(const Schedule& computing) {
  if (has_messages(computing))
    fail("a schedule that sends and receives is lowered already", ErrorKind::usage);
  const Messages messages(rank_of_stage(computing));
  const auto inside = [&](const Action& action) {
    return action.stage >= 0 && action.stage < computing.stages;
  };
  Schedule lowered{.stages = computing.stages, .micro_batches = computing.micro_batches};
  for (const auto& actions : computing.ranks) {
    auto& row = lowered.ranks.emplace_back();
    const auto receive_for = [&](std::size_t i) {
      if (i >= actions.size() || !inside(actions[i])) return;
      if (const auto receive = messages.received_by(actions[i])) row.push_back(*receive);
    };
    receive_for(0);
    receive_for(1);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      row.push_back(actions[i]);
      receive_for(i + 2);  // before the send, which may wait for the other rank to send
      if (!inside(actions[i])) continue;  // validate() reports it
      if (const auto send = messages.sent_by(actions[i])) row.push_back(*send);
    }
  }
  return lowered;
}

}  // namespace sluice
