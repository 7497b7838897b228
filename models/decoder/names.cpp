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

constexpr DecoderNames gptj{.title = "GPT-J",
                            .table = "transformer.wte.weight",
                            .positions = "",
                            .blocks = "transformer.h.",
                            .final_norm = "transformer.ln_f",
                            .head = "lm_head.weight",
                            .head_bias = "lm_head.bias",
                            .norm_1 = "ln_1",
                            .qkv = "attn.qkv_proj",
                            .attention_out = "attn.out_proj",
                            .norm_2 = "",
                            .mlp_in = "mlp.fc_in",
                            .mlp_out = "mlp.fc_out",
                            .qkv_parts = {"attn.q_proj", "attn.k_proj", "attn.v_proj"},
                            .prefix = "transformer."};

constexpr DecoderNames gpt_neox{.title = "GPT-NeoX",
                                .table = "gpt_neox.embed_in.weight",
                                .positions = "",
                                .blocks = "gpt_neox.layers.",
                                .final_norm = "gpt_neox.final_layer_norm",
                                .head = "embed_out.weight",
                                .norm_1 = "input_layernorm",
                                .qkv = "attention.query_key_value",
                                .attention_out = "attention.dense",
                                .norm_2 = "post_attention_layernorm",
                                .mlp_in = "mlp.dense_h_to_4h",
                                .mlp_out = "mlp.dense_4h_to_h",
                                .prefix = "gpt_neox."};

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
          .query_norm = "self_attn.q_norm",
          .key_norm = "self_attn.k_norm",
          .qkv_parts = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .mlp_parts = {"mlp.gate_proj", "mlp.up_proj"},
          .prefix = "model."};
}

constexpr DecoderNames llama = llama_of("Llama"), mistral = llama_of("Mistral"),
                       qwen2 = llama_of("Qwen2"), qwen3 = llama_of("Qwen3");

}  // namespace

std::string DecoderNames::adapter_prefix() const {
  std::string begin = "base_model.model.";
  if (!blocks.starts_with(prefix)) begin += prefix;
  return begin;
}

const DecoderNames& names_of(Family family) {
  switch (family) {
    case Family::gptj:
      return gptj;
    case Family::gpt_neox:
      return gpt_neox;
    case Family::llama:
      return llama;
    case Family::mistral:
      return mistral;
    case Family::qwen2:
      return qwen2;
    case Family::qwen3:
      return qwen3;
    case Family::gpt2:
      break;
  }
  return gpt2;
}

}  // namespace sluice
