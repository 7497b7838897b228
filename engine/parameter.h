#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/shard.h"
#include "engine/tensor.h"

namespace sluice {

struct QuantizedMatrix;  // engine/ops/linear/quantized_matrix.h

/// Initial values of a parameter: normal with mean 0, or one constant.
struct Initial {
  double standard_deviation = 0;
  double value = 0;

  static Initial normal(double standard_deviation) { return {standard_deviation, 0}; }
  static Initial constant(double value) { return {0, value}; }
};

/// Rows of a parameter that model files keep as a tensor of their own, such as q, k and v of one
/// matrix.
struct StoredPart {
  std::string name;
  std::int64_t rows;
};

/// A parameter as a module declares it: name, shape, initial values, and the member that will hold
/// the tensor. All parameters of a model get their memory at once (optim/space/parameter_space.h),
/// so that they lie in one flat space and exist only once.
struct Parameter {
  std::string name;
  Shape shape;
  Initial initial;
  Tensor* tensor;
  /// True for a table with a row for each token or position, also that of a vocabulary head. Its
  /// optimizer state is never rounded, since most rows have no gradient in most steps. Its state
  /// stays on the device: a forward pass reads an embedding first, so no computation could hide the
  /// copies.
  bool embedding = false;
  /// Number of the part of the model that the parameter belongs to, ascending. Norms are summed
  /// part by part, so that ranks that have some parts get the same bits as one rank that has all.
  int section = 0;
  /// The elements on this rank if several ranks divide the parameter; `shape` is then the shard's.
  Shard shard{};
  /// The parts of the whole parameter, in order; empty: files keep it under its own name.
  std::vector<StoredPart> parts{};
  /// True for a layer's weight whose rows are inputs: [in, out].
  bool in_out = false;
  /// The member that holds the matrix as 8-bit integers instead of `tensor`; null: none does.
  QuantizedMatrix* quantized = nullptr;
};

}  // namespace sluice
