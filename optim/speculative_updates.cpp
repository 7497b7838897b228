#include "optim/speculative_updates.h"

#include "engine/autograd.h"

namespace sluice {

SpeculativeUpdates::SpeculativeUpdates(ParameterSpace& space, Optimizer& optimizer)
    : space_(space), optimizer_(optimizer) {
  for (std::size_t slot = space.slots().size(); slot > 0; --slot)
    if (space.slots()[slot - 1].residency == Residency::speculative) slots_.push_back(slot - 1);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    set_gradient_ready_hook(*space.slots()[slots_[i]].tensor, [this, i] { complete(i); });
}

SpeculativeUpdates::~SpeculativeUpdates() {
  for (const std::size_t slot : slots_)
    set_gradient_ready_hook(*space_.slots()[slot].tensor, {});
}

void SpeculativeUpdates::begin(double rate, double gradient_scale) {
  complete_.assign(slots_.size(), false);
  next_ = 0;
  active_ = true;
  optimizer_.speculate(rate, gradient_scale);
}

void SpeculativeUpdates::complete(std::size_t index) {
  if (!active_) return;
  complete_[index] = true;
  while (next_ < slots_.size() && complete_[next_])
    ++next_;
  if (next_ > 0) optimizer_.speculate_down_to(space_.slots()[slots_[next_ - 1]].offset);
  active_ = next_ < slots_.size();
}

}  // namespace sluice
