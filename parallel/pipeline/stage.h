#pragma once

#include "engine/tensor.h"

namespace sluice {

/// One stage of a pipeline: a part of a model that takes the previous part's output. A stage has
/// its own parameters and the data of each micro-batch.
class Stage {
 public:
  Stage() = default;
  virtual ~Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  /// Shape and dtype of a stage's input, or of its output if another stage follows.
  struct Boundary {
    Shape shape;
    DType dtype;
  };
  virtual Boundary input(int micro_batch) const = 0;
  virtual Boundary output(int micro_batch) const = 0;

  /// Returns the output for one micro-batch; the last stage returns the loss, one element. `input`
  /// is none at the first stage. A second call must give the same bits (Stash::input).
  virtual Tensor forward(int micro_batch, const Tensor& input) = 0;
};

}  // namespace sluice
