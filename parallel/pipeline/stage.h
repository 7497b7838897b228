#pragma once

#include "engine/tensor.h"

namespace sluice {

/// A stage of a pipeline: a part of a model that computes from the output of the part before it.
/// The stage itself knows its parameters and the data of each micro-batch.
class Stage {
 public:
  Stage() = default;
  virtual ~Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  /// Shape and dtype of what a stage receives or, if another stage follows, hands on.
  struct Boundary {
    Shape shape;
    DType dtype;
  };
  virtual Boundary input(int micro_batch) const = 0;
  virtual Boundary output(int micro_batch) const = 0;

  /// Returns the result for one micro-batch; that of the last stage is the loss, one element.
  /// `input` is none at the first stage. A second call must compute the same again.
  virtual Tensor forward(int micro_batch, const Tensor& input) = 0;
};

}  // namespace sluice
