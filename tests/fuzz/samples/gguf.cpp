#include "tests/fuzz/samples.h"
#include "tests/support/gguf_file.h"

namespace sluice::fuzz {
namespace {

using test::GgufFile;

/// A Llama of one layer.
GgufFile small_model() {
  GgufFile file;
  file.text("general.architecture", "llama");
  for (const auto& [key, value] : {std::pair{"llama.block_count", 1u},
                                   {"llama.context_length", 8u},
                                   {"llama.embedding_length", 32u},
                                   {"llama.feed_forward_length", 32u},
                                   {"llama.attention.head_count", 2u},
                                   {"llama.attention.head_count_kv", 1u}})
    file.number(key, value);
  file.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto add = [&](const char* name, std::vector<std::uint64_t> dimensions, bool quantized) {
    std::uint64_t elements = 1;
    for (const std::uint64_t size : dimensions)
      elements *= size;
    const std::uint64_t bytes = quantized ? elements / 32 * 34 : elements * 4;
    file.tensors.push_back(
        {name, std::move(dimensions), quantized ? 8u : 0u, std::string(bytes, '\1')});
  };
  add("token_embd.weight", {32, 5}, true);
  add("output_norm.weight", {32}, false);
  add("blk.0.attn_norm.weight", {32}, false);
  add("blk.0.ffn_norm.weight", {32}, false);
  add("blk.0.attn_q.weight", {32, 32}, true);
  add("blk.0.attn_k.weight", {32, 16}, true);
  add("blk.0.attn_v.weight", {32, 16}, true);
  add("blk.0.attn_output.weight", {32, 32}, true);
  for (const char* const name :
       {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"})
    add(name, {32, 32}, true);
  return file;
}

GgufFile small_tokenizer_file(const std::string& split = "smollm") {
  GgufFile file;
  file.tokenizer(split);
  return file;
}

template <class Change>
std::string model(Change&& change) {
  GgufFile file = small_model();
  change(file);
  return "m" + file.bytes();
}

template <class Change>
std::string tokenizer(Change&& change) {
  GgufFile file = small_tokenizer_file();
  change(file);
  return "t" + file.bytes();
}

}  // namespace

Samples gguf_samples() {
  const std::string whole = "m" + small_model().bytes();
  const std::string many = GgufFile::bytes_of(std::uint64_t{1} << 60);
  return {
      {"accepted-model", whole, ""},
      {"accepted-tokenizer", "t" + small_tokenizer_file().bytes(), ""},
      {"accepted-tokenizer-llama", "t" + small_tokenizer_file("llama-bpe").bytes(), ""},
      {"accepted-tokenizer-gpt2", "t" + small_tokenizer_file("gpt-2").bytes(), ""},
      {"empty", "m", "is no GGUF file"},
      {"cut-in-header", whole.substr(0, 200), "25 bytes are announced, 15 are left"},
      {"cut-in-data", whole.substr(0, whole.size() - 40), "was it cut short?"},
      {"many-keys",
       "m" + GgufFile::bytes_of(0x46554747) + GgufFile::bytes_of(3) +
           GgufFile::bytes_of(std::uint64_t{0}) + many,
       "ends at byte 24"},
      {"many-tensors",
       "m" + GgufFile::bytes_of(0x46554747) + GgufFile::bytes_of(3) + many +
           GgufFile::bytes_of(std::uint64_t{0}),
       "announces 1152921504606846976 tensors"},
      {"long-text", model([&](GgufFile& f) {
         f.keys.push_back({"k", 8, many});
       }),
       "1152921504606846976 bytes are announced"},
      {"long-list", model([&](GgufFile& f) {
         f.keys.push_back({"k", 9, GgufFile::bytes_of(4) + many});
       }),
       "1152921504606846976 values are announced"},
      {"nested-list", model([&](GgufFile& f) {
         f.keys.push_back({"k", 9, GgufFile::bytes_of(9) + GgufFile::bytes_of(std::uint64_t{1})});
       }),
       "has a list of lists as \"k\""},
      {"huge-dimension", model([](GgufFile& f) {
         f.tensors[0].dimensions = {std::uint64_t{1} << 50, 5};
       }),
       "a dimension of 1125899906842624"},
      {"wrapped-offset", model([](GgufFile& f) { f.tensors[0].offset_error = ~std::uint64_t{31}; }),
       "was it cut short?"},
      {"quantized-3-bits", model([](GgufFile& f) { f.tensors[0].type = 11; }), "as Q3_K"},
      {"other-architecture",
       model([](GgufFile& f) { f.keys[0].value = GgufFile::text_of("gptneox"); }),
       "architecture \"gptneox\""},
      {"no-layers", model([](GgufFile& f) { f.keys.erase(f.keys.begin() + 1); }),
       "has no key \"llama.block_count\""},
      {"heads-of-text", model([](GgufFile& f) {
         f.keys[5] = {f.keys[5].name, 8, GgufFile::text_of("2")};
       }),
       "has \"2\" as \"llama.attention.head_count\""},
      {"missing-tensor", model([](GgufFile& f) { f.tensors.pop_back(); }),
       "has no tensor \"blk.0.ffn_down.weight\""},
      {"wrong-shape", model([](GgufFile& f) {
         f.tensors[5].dimensions = {16, 32};
       }),
       "in blocks of 32"},
      {"not-finite",
       model([](GgufFile& f) { f.tensors[1].data.replace(0, 4, std::string(4, '\xFF')); }),
       "is not finite at element 0"},
      {"other-tokenizer",
       tokenizer([](GgufFile& f) { f.keys[0].value = GgufFile::text_of("llama"); }),
       "a tokenizer of kind \"llama\""},
      {"other-split", tokenizer([](GgufFile& f) { f.keys[1].value = GgufFile::text_of("tekken"); }),
       "the split \"tekken\""},
      {"token-twice", tokenizer([](GgufFile& f) {
         f.keys[2].value.replace(f.keys[2].value.size() - 17, 2, "\xC4\xA0");
       }),
       "twice"},
      {"part-of-a-model", model([](GgufFile& f) { f.number("split.count", 3); }), "one of 3 files"},
      {"accepted-linear-scaling",
       model([](GgufFile& f) { f.real("llama.rope.scaling.factor", 4); }), ""},
      {"scaling-below-one", model([](GgufFile& f) { f.real("llama.rope.scaling.factor", 0.5f); }),
       "has 0.5 as \"llama.rope.scaling.factor\""},
      {"many-layers", model([](GgufFile& f) { f.keys[1].value = GgufFile::bytes_of(~0u); }),
       "has 4294967295 as \"llama.block_count\""},
      {"types-of-fewer", tokenizer([](GgufFile& f) {
         f.keys[3] = {"tokenizer.ggml.token_type", 9, GgufFile::bytes_of(5) + std::string(8, '\0')};
       }),
       "has 258 tokens and the types of 0"},
      {"no-merges", tokenizer([](GgufFile& f) { f.keys.erase(f.keys.begin() + 4); }),
       "has no list \"tokenizer.ggml.merges\""}};
}

}  // namespace sluice::fuzz
