#pragma once

#include <string>

#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// A parameter that a model uses in two places, such as GPT-2's table, which embeds and predicts.
/// In a pipeline the first and the last rank have a copy each. The gradients of the two uses are
/// collected separately and added once per step, before replicas reduce them, and both copies are
/// updated alike. A rank that has both places does the same, so that it finds the same bits.
class TiedParameter {
 public:
  /// `ends`: the two ranks, on the memory of the space, which exchange `piece` elements at a time;
  /// or this rank alone. All arguments must outlive this object.
  TiedParameter(ParameterSpace& space, const std::string& name, Communicator& ends,
                std::int64_t piece);

  /// The tensor for the second place if one rank has both: same elements, separate gradient.
  const Tensor& second() const { return second_; }

  /// Makes the next gradients overwrite those of the last step.
  void forget_gradients();
  /// Adds the gradients of both places. Called after the last backward of a step.
  void add_gradients();

 private:
  ParameterSpace& space_;
  const ParameterSpace::Slot& slot_;
  Communicator& ends_;
  Tensor scratch_, second_, second_gradient_;
};

}  // namespace sluice
