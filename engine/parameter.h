#pragma once

#include <string>

#include "engine/shard.h"
#include "engine/tensor.h"

namespace sluice {

/// How a parameter starts in a model without weights: normal with mean 0, or one value.
struct Initial {
  double standard_deviation = 0;
  double value = 0;

  static Initial normal(double standard_deviation) { return {standard_deviation, 0}; }
  static Initial constant(double value) { return {0, value}; }
};

/// What a module declares: a name, a shape, a start, and the member that will hold the tensor.
/// Memory is given to all parameters of a model at once (optim/parameter_space.h), so that they
/// lie in one flat space and exist only once.
struct Parameter {
  std::string name;
  Shape shape;
  Initial initial;
  Tensor* tensor;
  /// A table whose rows are looked up: its gradient is sparse and its update has no slack, so its
  /// state stays at full precision on the device.
  bool embedding = false;
  /// The part of the model that it belongs to, ascending. Norms are summed part by part, so that
  /// several ranks that have some parts each find the bits of one that has all.
  int section = 0;
  /// What this rank has of it, where several divide it: `shape` is the shard's.
  Shard shard{};
};

}  // namespace sluice
