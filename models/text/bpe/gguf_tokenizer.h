#pragma once

#include <memory>

#include "engine/io/gguf.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// Returns the tokenizer in a GGUF file of a byte-level BPE ("tokenizer.ggml.model" is "gpt2"), as
/// if it had been read from a tokenizer.json. Throws Error (usage) for another kind, and for a
/// split
/// ("tokenizer.ggml.pre") other than those of GPT-2, SmolLM,
/// Llama 3 and Qwen2.
std::unique_ptr<Tokenizer> gguf_tokenizer(const GgufReader& reader);

}  // namespace sluice
