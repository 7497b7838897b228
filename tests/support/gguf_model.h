#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/fixture.h"
#include "tests/support/gguf_file.h"
#include "tests/support/gradcheck.h"

namespace sluice::test {

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

/// A name of llama.cpp's for a tensor of Hugging Face's.
inline std::string gguf_name_of(std::string name) {
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"model.embed_tokens", "token_embd"},
                                                        {"model.norm", "output_norm"},
                                                        {"lm_head", "output"},
                                                        {"model.layers", "blk"},
                                                        {"input_layernorm", "attn_norm"},
                                                        {"post_attention_layernorm", "ffn_norm"},
                                                        {"self_attn.o_proj", "attn_output"},
                                                        {"self_attn.", "attn_"},
                                                        {"mlp.", "ffn_"},
                                                        {"_proj", ""}})
    name = replaced(name, from, to);
  return name;
}

/// The file of a model, as llama.cpp's converter writes it.
inline GgufFile gguf_of(const TestModel& made) {
  const DecoderConfig& config = made.model->config();
  // llama.cpp knows a Mistral as a Llama, with a window.
  const bool mistral = config.family == Family::mistral;
  const std::string architecture(name_of(mistral ? Family::llama : config.family));
  GgufFile file;
  file.text("general.architecture", architecture);
  const auto number = [&](const char* key, std::int64_t value) {
    file.number(architecture + "." + key, static_cast<std::uint32_t>(value));
  };
  number("block_count", config.n_layer);
  number("context_length", config.n_positions);
  number("embedding_length", config.n_embd);
  number("feed_forward_length", config.inner());
  number("attention.head_count", config.n_head);
  number("attention.head_count_kv", config.kv_heads());
  number("attention.key_length", config.width_of_head());
  number("rope.dimension_count", config.width_of_head());
  if (mistral) number("attention.sliding_window", config.n_positions);
  file.real(architecture + ".rope.freq_base", static_cast<float>(config.rotary->base));
  file.real(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  for (const auto& slot : made.space->slots())
    for (const StoredSlice& slice : slot.stored()) {
      const Values values = slot.tensor->slice(slice.first, slice.shape).to_host();
      const bool q = slice.name.find("q_proj.weight") != std::string::npos;
      const bool k = slice.name.find("k_proj.weight") != std::string::npos;
      const std::int64_t heads = q ? config.n_head : config.kv_heads();
      const auto row = values.size() / static_cast<std::size_t>(slice.shape[0]);
      std::string data;
      for (std::int64_t i = 0; i < slice.shape[0]; ++i) {
        std::int64_t from = i;
        if ((q || k) && architecture == "llama") {
          // Hugging Face's rows (half, i) of a head become rows (i, half).
          const std::int64_t width = slice.shape[0] / heads, in_head = i % width;
          from = i - in_head + in_head % 2 * (width / 2) + in_head / 2;
        }
        for (std::size_t j = 0; j < row; ++j)
          data += GgufFile::bytes_of(
              static_cast<float>(values[static_cast<std::size_t>(from) * row + j]));
      }
      file.tensors.push_back({gguf_name_of(slice.name), {}, 0, data});
      for (auto size = slice.shape.rbegin(); size != slice.shape.rend(); ++size)
        file.tensors.back().dimensions.push_back(static_cast<std::uint64_t>(*size));
    }
  return file;
}

/// A Llama of one layer with a tokenizer of bytes.
inline GgufFile small_gguf() {
  DecoderConfig config = config_of(Family::llama);
  config.n_layer = 1;
  config.n_head = 2;
  config.n_embd = 32;
  config.n_inner = 32;
  config.vocab_size = 258;
  config.n_positions = 32;
  GgufFile file = gguf_of(random_model(config, make_cpu_device(), DType::f32, 1));
  file.tokenizer();
  return file;
}

}  // namespace sluice::test
