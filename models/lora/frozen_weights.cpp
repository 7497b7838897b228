#include "models/lora/frozen_weights.h"

#include <algorithm>
#include <iterator>

#include "kernels/quantized.h"
#include "models/decoder/weights.h"

namespace sluice {
namespace {

/// Returns the parameters that are kept as 8-bit integers if `quantized`, else the others.
std::vector<Parameter> frozen_part(Decoder& model, const std::vector<DecoderPart>& parts,
                                   bool quantized) {
  std::vector<Parameter> list;
  std::ranges::copy_if(model.frozen_parameters(parts), std::back_inserter(list),
                       [&](const Parameter& p) { return (p.quantized != nullptr) == quantized; });
  return list;
}

}  // namespace

FrozenWeights::FrozenWeights(Decoder& model, const std::vector<DecoderPart>& parts,
                             const DevicePtr& device, DType dtype)
    : space_(frozen_part(model, parts, false), device, dtype, ParameterSpace::Use::inference) {
  if (model.config().lora.int8_base) quantized_.emplace(frozen_part(model, parts, true), device);
}

void FrozenWeights::load(const std::filesystem::path& folder, const DecoderConfig& config) {
  load_weights(folder, config, space_);
  if (quantized_) load_weights(folder, config, *quantized_);
}

void FrozenWeights::initialize(std::uint64_t seed) {
  space_.initialize(seed);
  if (quantized_) quantized_->initialize(seed);
}

double frozen_bytes(Decoder& model, const std::vector<DecoderPart>& parts, DType dtype) {
  double bytes = 0;
  for (const Parameter& parameter : model.frozen_parameters(parts)) {
    const auto elements = static_cast<double>(element_count(parameter.shape));
    const std::int64_t columns = parameter.shape.back();
    bytes += parameter.quantized == nullptr
                 ? elements * static_cast<double>(size_of(dtype))
                 : elements + elements / static_cast<double>(columns) *
                                  static_cast<double>(2 * quantized_blocks(columns));
  }
  return bytes;
}

}  // namespace sluice
