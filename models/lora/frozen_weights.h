#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "models/decoder/decoder.h"
#include "optim/space/parameter_space.h"
#include "optim/space/quantized_space.h"

namespace sluice {

/// The weights of a model with adapters, which are not trained: in the dtype in which the model
/// computes, or with LoraConfig::int8_base the matrices of its blocks as 8-bit integers.
class FrozenWeights {
 public:
  /// Allocates memory for the parts of a rank. All is zero.
  FrozenWeights(Decoder& model, const std::vector<DecoderPart>& parts, const DevicePtr& device,
                DType dtype);

  /// Fills them from a model folder; see load_weights().
  void load(const std::filesystem::path& folder, const DecoderConfig& config);
  /// Fills them with the values with which a new model begins, for tests and measurements.
  void initialize(std::uint64_t seed);

  ParameterSpace& plain() { return space_; }
  /// The matrices that are kept as 8-bit integers; null: none are.
  QuantizedSpace* quantized() { return quantized_ ? &*quantized_ : nullptr; }

 private:
  ParameterSpace space_;
  std::optional<QuantizedSpace> quantized_;
};

/// Bytes of these weights; 0 without adapters.
double frozen_bytes(Decoder& model, const std::vector<DecoderPart>& parts, DType dtype);

}  // namespace sluice
