#include "models/decoder/names.h"

namespace sluice {
namespace {

constexpr DecoderNames gpt2{.title = "GPT-2",
                            .table = "wte.weight",
                            .positions = "wpe.weight",
                            .blocks = "h.",
                            .final_norm = "ln_f",
                            .head = "lm_head.weight",
                            .norm_1 = "ln_1",
                            .qkv = "attn.c_attn",
                            .attention_out = "attn.c_proj",
                            .norm_2 = "ln_2",
                            .mlp_in = "mlp.c_fc",
                            .mlp_out = "mlp.c_proj",
                            .prefix = "transformer."};

constexpr DecoderNames llama_of(std::string_view title) {
  return {.title = title,
          .table = "model.embed_tokens.weight",
          .positions = "",
          .blocks = "model.layers.",
          .final_norm = "model.norm",
          .head = "lm_head.weight",
          .norm_1 = "input_layernorm",
          .qkv = "self_attn.qkv_proj",
          .attention_out = "self_attn.o_proj",
          .norm_2 = "post_attention_layernorm",
          .mlp_in = "mlp.gate_up_proj",
          .mlp_out = "mlp.down_proj",
          .qkv_parts = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .mlp_parts = {"mlp.gate_proj", "mlp.up_proj"},
          .prefix = "model."};
}

constexpr DecoderNames llama = llama_of("Llama"), mistral = llama_of("Mistral"),
                       qwen2 = llama_of("Qwen2");

}  // namespace

const DecoderNames& names_of(Family family) {
  switch (family) {
    case Family::llama:
      return llama;
    case Family::mistral:
      return mistral;
    case Family::qwen2:
      return qwen2;
    case Family::gpt2:
      break;
  }
  return gpt2;
}

}  // namespace sluice
