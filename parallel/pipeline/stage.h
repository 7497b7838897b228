#pragma once

#include "engine/tensor.h"

namespace sluice {

/// A part of a model that computes by itself from what the part before it hands on: what a pipeline
/// is made of. Where its parameters lie and which data belongs to a micro-batch is its own affair.
class Stage {
 public:
  Stage() = default;
  virtual ~Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  /// Of what it receives and, where there is a stage after it, of what it hands on.
  struct Boundary {
    Shape shape;
    DType dtype;
  };
  virtual Boundary input(int micro_batch) const = 0;
  virtual Boundary output(int micro_batch) const = 0;

  /// The result for one micro-batch: that of the last stage is the loss, one element. `input` is
  /// none at the first. Must do the same when it is called again.
  virtual Tensor forward(int micro_batch, const Tensor& input) = 0;
};

}  // namespace sluice
