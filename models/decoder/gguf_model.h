#pragma once

#include "engine/io/gguf.h"
#include "models/decoder/config.h"
#include "optim/space/parameter_space.h"

namespace sluice {

/// Returns the configuration of the model in a GGUF file of architecture llama (also Mistral's),
/// qwen2 or qwen3. Throws Error (usage) naming the file and the key for anything else.
DecoderConfig gguf_config(const GgufReader& reader);

/// Fills a decoder's parameters from the tensors of a GGUF file. Throws Error (usage) if a tensor
/// is missing, has another shape, is not finite, or does not belong to the model.
///
/// llama.cpp rotates neighbouring columns of a Llama's q and k, so their rows are in another order
/// than Hugging Face's, in which they are read.
void load_gguf_weights(const GgufReader& reader, const DecoderConfig& config,
                       ParameterSpace& space);

}  // namespace sluice
