#include "models/decoder/quantized_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view advice =
    "quantised weights are not supported; take the model in BF16, F16 or F32";

/// Ends of the names of tensors beside or instead of a weight, as GPTQ and AWQ (the first four),
/// bitsandbytes, compressed-tensors, FP8 and HQQ have them.
constexpr std::string_view ends[] = {".qweight",
                                     ".qzeros",
                                     ".scales",
                                     ".g_idx",
                                     ".weight.absmax",
                                     ".weight.quant_map",
                                     ".weight.nested_absmax",
                                     ".weight_format",
                                     ".SCB",
                                     ".weight_packed",
                                     ".weight_scale",
                                     ".weight_scale_inv",
                                     ".weight_zero_point",
                                     ".weight_shape",
                                     ".input_scale",
                                     ".W_q"};

}  // namespace

void refuse_quantized(const Json& config, const std::string& file) {
  if (!config.is_object()) return;
  // The second is what the first was called in early folders of compressed-tensors.
  for (const char* const key : {"quantization_config", "compression_config"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null() || (found->is_object() && found->empty()))
      continue;
    const bool named = found->is_object() && found->contains("quant_method");
    fail(fmt::format("{}: \"{}\" {} {}; {}", file, key, named ? "has the quant_method" : "is",
                     shown(named ? found->at("quant_method") : *found), advice),
         ErrorKind::usage);
  }
}

void refuse_quantized(const SafetensorsReader& weights) {
  for (const StoredTensor& tensor : weights.tensors())
    if (std::ranges::any_of(ends, [&](auto end) { return tensor.name.ends_with(end); }))
      fail(fmt::format("{}: tensor {} of type {} belongs to a quantised model; {}",
                       weights.path().string(), quote(tensor.name), name_of(tensor.type), advice),
           ErrorKind::usage);
}

}  // namespace sluice
