#pragma once

#include <string>

#include "optim/parameter_space.h"
#include "parallel/communicator.h"

namespace sluice {

/// A parameter that a model uses in two places, such as GPT-2's table, which embeds and predicts.
/// In a pipeline the first and the last rank have a copy each; the gradients of the two uses are
/// collected apart and added once a step, before replicas reduce them, and both copies are updated
/// alike. A rank that has both places does the same, so that it finds the same bits.
class TiedParameter {
 public:
  /// `ends`: the two ranks, on the memory of the space, which exchange `piece` elements at a time;
  /// or this one alone. Everything given outlives it.
  TiedParameter(ParameterSpace& space, const std::string& name, Communicator& ends,
                std::int64_t piece);

  /// For the second place where one rank has both: the same elements with a gradient of their own.
  const Tensor& second() const { return second_; }

  /// The next gradients overwrite those of the last step.
  void forget_gradients();
  /// After the last backward of a step.
  void add_gradients();

 private:
  ParameterSpace& space_;
  const ParameterSpace::Slot& slot_;
  Communicator& ends_;
  Tensor scratch_, second_, second_gradient_;
};

}  // namespace sluice
