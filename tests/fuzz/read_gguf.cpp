#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/decoder/decoder.h"
#include "models/decoder/gguf_model.h"
#include "models/text/bpe/gguf_tokenizer.h"
#include "tests/fuzz/harness.h"

namespace sluice::fuzz {
namespace {

void read_model(const GgufReader& reader) {
  const DecoderConfig config = gguf_config(reader);
  constexpr std::int64_t small = 100'000;
  if (config.parameter_count() > small) return;
  Decoder model(config);
  ParameterSpace space(model.parameters(), make_cpu_device(), DType::f32,
                       ParameterSpace::Use::inference);
  load_gguf_weights(reader, config, space);
  std::vector<float> values(static_cast<std::size_t>(space.parameters()));
  space.read_weights(0, std::as_writable_bytes(std::span(values)));
  require(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }),
          "a weight that is not finite was accepted");
}

}  // namespace

void read_gguf(Bytes input) {
  const GgufReader reader(put("model.gguf", input.substr(std::min<std::size_t>(1, input.size()))));
  for (const GgufTensor& tensor : reader.tensors()) {
    require(reader.find(tensor.name) == &tensor, "a tensor is not found by its name");
    std::vector<float> values(static_cast<std::size_t>(block_size(tensor.type)));
    reader.read(tensor, element_count(tensor.shape) - block_size(tensor.type), values);
  }
  if (input.starts_with('m')) return read_model(reader);
  const auto tokenizer = gguf_tokenizer(reader);
  const std::string text = "ab 12 <|end|>";
  require(tokenizer->decode(tokenizer->encode_with_special(text)) == text,
          "a text differs once decoded");
}

}  // namespace sluice::fuzz
