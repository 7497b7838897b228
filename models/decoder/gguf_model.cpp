#include "models/decoder/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/io/json_document.h"
#include "engine/io/stored_tensor.h"
#include "models/decoder/config_json/config_file.h"
#include "models/decoder/names.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const GgufReader& reader, const std::string& what) {
  fail(fmt::format("{} {}", reader.path().string(), what), ErrorKind::usage);
}

/// Names of the tensors of a block, in Hugging Face's files and in GGUF files.
constexpr std::pair<std::string_view, std::string_view> block_names[] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.o_proj", "attn_output"}, {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"}};

/// Returns the name that a GGUF file gives a tensor of Hugging Face's.
std::string gguf_name(std::string_view name, const DecoderNames& names) {
  if (name == names.table) return "token_embd.weight";
  if (name == names.head) return "output.weight";
  if (name == fmt::format("{}.weight", names.final_norm)) return "output_norm.weight";
  name.remove_prefix(names.blocks.size());
  const std::size_t dot = name.find('.'), last = name.rfind('.');
  const std::string_view layer = name.substr(0, dot), kind = name.substr(last);
  const std::string_view inner = name.substr(dot + 1, last - dot - 1);
  for (const auto& [ours, theirs] : block_names)
    if (inner == ours) return fmt::format("blk.{}.{}{}", layer, theirs, kind);
  fail(fmt::format("the tensor {} has no name in GGUF files", name));
}

/// Returns the heads of q or k that a tensor has, whose rows the file interleaves; 0: in order.
std::int64_t interleaved_heads(const std::string& name, const DecoderConfig& config) {
  if (config.family != Family::llama && config.family != Family::mistral) return 0;
  if (name.find("self_attn.q_proj") != name.npos) return config.n_head;
  return name.find("self_attn.k_proj") != name.npos ? config.kv_heads() : 0;
}

/// Keys of an architecture that are read here, or that decide nothing.
constexpr std::string_view known_keys[] = {
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.layer_norm_rms_epsilon", "attention.sliding_window", "attention.value_length",
    "block_count", "context_length", "embedding_length", "expert_count", "feed_forward_length",
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.factor",
    "rope.scaling.type", "vocab_size",
    // Of other scalings than linear, of experts, of generation, of how a converter read the file.
    "rope.scaling.finetuned", "rope.scaling.original_context_length", "expert_used_count",
    "decoder_start_token_id", "tensor_data_layout"};

/// Keys that change what an architecture computes, and the value with which they change nothing.
struct IdleKey {
  std::string_view key;
  double idle;
};
constexpr IdleKey idle_keys[] = {{"attention.scale", 0},
                                 {"attention.clamp_kqv", 0},
                                 {"attention.max_alibi_bias", 0},
                                 {"attn_logit_softcapping", 0},
                                 {"embedding_scale", 1},
                                 {"final_logit_softcapping", 0},
                                 {"logit_scale", 1},
                                 {"residual_scale", 1},
                                 {"rope.scaling.attn_factor", 1}};

/// Reads a key of the architecture, such as "llama.block_count".
class Keys {
 public:
  Keys(const GgufReader& reader, std::string architecture)
      : reader_(reader), prefix_(std::move(architecture) + ".") {}

  /// Refuses keys of the architecture that nothing here reads: each may change what is computed.
  void account_for_all() const {
    for (const auto& [name, value] : reader_.metadata().items()) {
      if (!name.starts_with(prefix_)) continue;
      const std::string_view key = std::string_view(name).substr(prefix_.size());
      const auto* const idle = std::ranges::find(idle_keys, key, &IdleKey::key);
      const bool same = idle != std::end(idle_keys)
                            ? value.is_number() && value.get<double>() == idle->idle
                            : key == "attention.causal" && value == true;
      if (!same && std::ranges::find(known_keys, key) == std::end(known_keys))
        refuse(reader_,
               fmt::format("has {} as {}, which is not supported", quote(name), shown(value)));
    }
  }

  bool has(const char* key) const { return reader_.metadata().contains(prefix_ + key); }
  const Json& at(const char* key) const {
    if (!has(key)) refuse(reader_, fmt::format("has no key {}", quote(prefix_ + key)));
    return reader_.metadata().at(prefix_ + key);
  }
  /// A whole number, such as a count of layers.
  const Json& size(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(largest_size))
      refuse(reader_, fmt::format("has {} as {}; it must be a whole number up to {}", shown(value),
                                  quote(prefix_ + key), largest_size));
    return value;
  }
  double factor(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number() || !(value.get<double>() >= 1))
      refuse(reader_, fmt::format("has {} as {}; it must be a number from 1 on", shown(value),
                                  quote(prefix_ + key)));
    return value.get<double>();
  }
  void require(const char* key, const Json& value) const {
    if (has(key) && at(key) != value)
      refuse(reader_, fmt::format("has {} as {}; only {} is supported", shown(at(key)),
                                  quote(prefix_ + key), shown(value)));
  }

 private:
  const GgufReader& reader_;
  std::string prefix_;
};

}  // namespace

DecoderConfig gguf_config(const GgufReader& reader) {
  const Json& all = reader.metadata();
  const Json type = all.contains("general.architecture") ? all.at("general.architecture") : Json();
  if (type != "llama" && type != "qwen2" && type != "qwen3")
    refuse(reader, fmt::format("has a model of architecture {}; only \"llama\", \"qwen2\" and "
                               "\"qwen3\" are supported",
                               shown(type)));
  const Keys keys(reader, type.get<std::string>());
  keys.require("expert_count", 0);
  if (all.contains("split.count") && all.at("split.count") != 1)
    refuse(reader, fmt::format("is one of {} files of a model; join them first (llama.cpp's "
                               "llama-gguf-split --merge)",
                               shown(all.at("split.count"))));
  if (reader.find("rope_freqs.weight") != nullptr)
    refuse(reader,
           "scales its rotary frequencies by a tensor \"rope_freqs.weight\", which is not "
           "supported; take the model's Hugging Face folder");
  const GgufTensor* const table = reader.find("token_embd.weight");
  if (table == nullptr) refuse(reader, "has no tensor \"token_embd.weight\"");
  // The same checks as for a config.json apply.
  Json json{{"model_type", type},
            {"hidden_act", "silu"},
            {"num_hidden_layers", keys.size("block_count")},
            {"num_attention_heads", keys.size("attention.head_count")},
            {"num_key_value_heads", keys.has("attention.head_count_kv")
                                        ? keys.size("attention.head_count_kv")
                                        : keys.size("attention.head_count")},
            {"hidden_size", keys.size("embedding_length")},
            {"intermediate_size", keys.size("feed_forward_length")},
            {"max_position_embeddings", keys.size("context_length")},
            {"rms_norm_eps", keys.at("attention.layer_norm_rms_epsilon")},
            {"rope_theta", keys.has("rope.freq_base") ? keys.at("rope.freq_base") : Json(10000.0)},
            {"vocab_size", table->shape.front()},
            {"tie_word_embeddings", reader.find("output.weight") == nullptr}};
  if (keys.has("vocab_size") && keys.at("vocab_size") != table->shape.front())
    refuse(reader, fmt::format("has {} tokens by its \"vocab_size\", and {} rows in its table",
                               shown(keys.at("vocab_size")), table->shape.front()));
  if (keys.has("attention.key_length")) json["head_dim"] = keys.size("attention.key_length");
  if (keys.has("attention.sliding_window")) {
    json["sliding_window"] = keys.size("attention.sliding_window");
    if (type == "llama")
      json["model_type"] = "mistral";
    else
      json["use_sliding_window"] = true;
  }
  // A factor without a type is linear, as for llama.cpp.
  if (!keys.has("rope.scaling.type") || keys.at("rope.scaling.type") != "none") {
    keys.require("rope.scaling.type", "linear");
    for (const char* const key : {"rope.scale_linear", "rope.scaling.factor"})
      if (keys.has(key))
        json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", keys.factor(key)}};
  }
  for (const auto& [key, ours] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                  {"tokenizer.ggml.eos_token_id", "eos_token_id"}})
    if (all.contains(key)) json[ours] = all.at(key);
  keys.account_for_all();
  const DecoderConfig config = parse_config(json, reader.path().string());
  if (keys.has("attention.value_length") &&
      keys.at("attention.value_length") != config.width_of_head())
    refuse(reader, fmt::format("has values of {} columns in heads of {}; only equal widths are "
                               "supported",
                               shown(keys.at("attention.value_length")), config.width_of_head()));
  if (keys.has("rope.dimension_count") && keys.at("rope.dimension_count") != config.width_of_head())
    refuse(reader, fmt::format("rotates {} columns of its heads, which are {} wide; only all are "
                               "supported",
                               shown(keys.at("rope.dimension_count")), config.width_of_head()));
  return config;
}

void load_gguf_weights(const GgufReader& reader, const DecoderConfig& config,
                       ParameterSpace& space) {
  const DecoderNames& names = names_of(config.family);
  std::set<std::string> known;
  for (const auto& slot : space.slots()) {
    for (const StoredSlice& slice : slot.stored()) {
      const std::string name = gguf_name(slice.name, names);
      known.insert(name);
      const GgufTensor* const tensor = reader.find(name);
      if (tensor == nullptr)
        refuse(reader, fmt::format("has no tensor {}; its metadata announce {} layers", quote(name),
                                   config.n_layer));
      if (tensor->shape != slice.shape)
        refuse(reader, fmt::format("has tensor {} of shape {}; its metadata imply {}", quote(name),
                                   to_string(tensor->shape), to_string(slice.shape)));
      const std::int64_t heads = interleaved_heads(slice.name, config);
      const auto read = [&](std::int64_t from, std::int64_t to, std::int64_t count) {
        read_floats(reader, *tensor, from, count, space.weight_dtype(),
                    [&](std::int64_t at, std::span<std::byte> values) {
                      space.write_shard(slot, slice.first + to + at - from, values);
                    });
      };
      if (heads == 0) {
        read(0, 0, element_count(slice.shape));
        continue;
      }
      // Rows 2 i and 2 i + 1 of a head are rows i and i + half.
      const std::int64_t row = element_count(slice.shape) / slice.shape[0];
      const std::int64_t width = slice.shape[0] / heads;
      for (std::int64_t i = 0; i < slice.shape[0]; ++i) {
        const std::int64_t head = i / width, column = i % width;
        read(i * row, (head * width + column % 2 * (width / 2) + column / 2) * row, row);
      }
    }
  }
  for (const GgufTensor& tensor : reader.tensors())
    if (!known.contains(tensor.name))
      refuse(reader, fmt::format("has a tensor {}, which does not belong to a {} of {} layers",
                                 quote(tensor.name), names.title, config.n_layer));
}

}  // namespace sluice
