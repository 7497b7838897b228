#pragma once

#include <string>

#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// A parameter that a model uses in two places, such as GPT-2's token table, which is both the
/// embedding and the vocabulary head. In a pipeline the first and the last rank each have a copy.
/// The gradients of the two uses are accumulated separately and added once per step, before the
/// reduction over replicas, so both copies get the same update. A rank with both places also keeps
/// two gradients, which gives the same bits.
class TiedParameter {
 public:
  /// `ends`: a communicator of the two ranks on the memory of the space, or of this rank alone.
  /// `piece`: elements exchanged at a time. All arguments must outlive this object.
  TiedParameter(ParameterSpace& space, const std::string& name, Communicator& ends,
                std::int64_t piece);

  /// The tensor for the second place if this rank has both: the same elements with a separate
  /// gradient. Else none.
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
