#pragma once

#include <string>

#include "models/decoder/decoder.h"
#include "optim/space/parameter_space.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

// Small models of the families for tests of adapters.

namespace sluice::test {

/// Gives every weight a random value, each seed others.
inline void randomize(ParameterSpace& space, std::uint64_t seed) {
  for (const auto& slot : space.slots()) {
    Values values = random_values(slot.size, ++seed, slot.shape.size() > 1 ? 0.3 : 0.2);
    for (double& value : values)
      value += slot.shape.size() > 1 ? 0 : slot.initial.value;
    space.write_weights(slot.offset, bytes_of(Tensor::from_host(make_cpu_device(), slot.shape,
                                                                space.weight_dtype(), values)));
  }
}

inline DecoderConfig config_for(const std::string& family) {
  DecoderConfig config = config_of(family == "gpt2"    ? Family::gpt2
                                   : family == "llama" ? Family::llama
                                   : family == "qwen3" ? Family::qwen3
                                   : family == "gptj"  ? Family::gptj
                                                       : Family::gpt_neox);
  config.n_layer = 2;
  config.n_head = 4;
  if (family == "llama" || family == "qwen3") config.n_kv_head = 2;
  config.n_embd = 32;
  config.head_width = 0;
  config.n_inner = 48;
  config.vocab_size = 40;
  config.n_positions = 12;
  if (config.rotary) config.rotary->width = 4;
  return config;
}

/// A model with adapters and random weights.
struct Adapted {
  Decoder model;
  ParameterSpace frozen, space;

  Adapted(const DecoderConfig& config, const DevicePtr& device, DType dtype)
      : model(config),
        frozen(model.frozen_parameters({{0, config.n_layer}}), device, dtype,
               ParameterSpace::Use::inference),
        space(model.parameters(), device, dtype, ParameterSpace::Use::training) {
    randomize(frozen, 1);
    randomize(space, 100);
  }
};

}  // namespace sluice::test
