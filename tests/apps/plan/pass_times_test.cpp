#include "apps/plan/cost/pass_times.h"

#include "apps/plan/cost/kernel_rates.h"
#include "tests/support/catch.h"

// On a GPU a pass takes the sum of its kernels' times, which were measured on an H200.

namespace sluice::test::pass_times_test {
namespace {

// Numbers in a layer's MLP, of a token: 8. Weights in the matrices of the block: 2 * 6 + 2 * 2 + 2
// * 8 + 8 * 2 = 48. Attention to 4 positions, of which half count: 2 * 4 * 2 operations.
const DecoderConfig tiny{.n_layer = 1, .n_head = 1, .n_embd = 2, .vocab_size = 3, .n_positions = 4};
constexpr double tokens = 8;
const MemoryChoice two_rows{.micro_batch = 2, .placement = {.blocks = {{}}}};
constexpr StepWork work{.batch = 2, .seq_len = 4, .dtype = DType::bf16};

/// A device without multiprocessors is never idle.
DeviceProfile gpu(int capability) {
  return {.gpu = true,
          .capability = capability,
          .wide_flops = 100,
          .narrow_flops = 1000,
          .memory_rate = 50};
}

PassTimes times(const DeviceProfile& profile, bool dropout = false) {
  StepWork with = work;
  with.dropout = dropout;
  return pass_times(tiny, two_rows, with, profile);
}

}  // namespace

TEST_CASE("a GPU's pass takes the time of its kernels", "[plan]") {
  const DeviceProfile profile = gpu(90);
  const KernelRates& rates = kernel_rates(90);
  const PassTimes pass = times(profile);
  const double products = tokens * 2 * 48 / (1000 * rates.products);
  const double attention = tokens * 2 * 4 * 2 / 1000;
  const auto memory = [](const KernelRates::Pass& kernel, double elements) {
    return elements * kernel.bytes / (kernel.share * 50);
  };
  CHECK(pass.gelu == Approx(memory(rates.gelu, tokens * 8)));
  const double norm = memory(rates.layernorm_sum, tokens * 2);
  CHECK(pass.norms == Approx(2 * norm));
  CHECK(pass.weights == Approx(products));
  CHECK(pass.layer_forward ==
        Approx(products + attention / rates.attention + pass.gelu + 2 * norm));
  // Gradients of 6 + 2 + 8 + 2 biases. The slope of GELU comes with a product.
  CHECK(pass.layer_backward == Approx(2 * products + 2.5 * attention / rates.attention_backward +
                                      2 * memory(rates.layernorm_backward, tokens * 2) +
                                      memory(rates.bias_gradient, tokens * 18)));
  const double head = tokens * 2 * 3 * 2 / 1000;
  CHECK(pass.head_forward == Approx(head + norm));
  CHECK(pass.head_backward == Approx(2 * head + memory(rates.cross_entropy, tokens * 3) +
                                     memory(rates.layernorm_backward, tokens * 2)));
  CHECK(pass.embedding_backward == Approx(memory(rates.embedding_backward, tokens * 2)));
  CHECK(pass.attention_in == Approx(tokens * 2 * 12 / (1000 * rates.products)));
  CHECK(pass.mlp_in == Approx(tokens * 2 * 16 / (1000 * rates.products)));

  const PassTimes random = times(profile, true);
  CHECK(random.layer_forward - pass.layer_forward ==
        Approx(attention / rates.attention_dropout - attention / rates.attention));
  CHECK(random.layer_backward > pass.layer_backward);
}

TEST_CASE("passes that only some families have are counted", "[plan]") {
  const KernelRates& rates = kernel_rates(90);
  const auto forward = [&](auto&& change) {
    DecoderConfig config = tiny;
    change(config);
    return pass_times(config, two_rows, work, gpu(90)).layer_forward;
  };
  const double plain = forward([](DecoderConfig&) {});
  const double heads = forward([](DecoderConfig& c) { c.fused_heads = true; });
  const double norms = forward([](DecoderConfig& c) { c.query_key_norm = true; });
  CHECK(heads - plain == Approx(rates.gelu.seconds(tokens * 6, gpu(90))));
  CHECK(norms - plain == Approx(rates.gelu.seconds(tokens * 6, gpu(90))));
  // One norm less, and an addition.
  const double parallel = forward([](DecoderConfig& c) { c.block = BlockKind::parallel_one_norm; });
  CHECK(parallel - plain == Approx(rates.gelu_backward.seconds(tokens * 2, gpu(90)) -
                                   rates.layernorm_sum.seconds(tokens * 2, gpu(90))));
}

TEST_CASE("adapters take time for their products, and a base of 8 bits to be dequantized",
          "[plan]") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    StepWork with = work;
    with.dtype = dtype;
    const double width = dtype == DType::bf16 ? 2 : 4;
    const PassTimes plain = pass_times(tiny, two_rows, with, gpu(90));
    DecoderConfig config = tiny;
    config.lora = {.rank = 1, .alpha = 1, .targets = {"c_attn", "c_proj", "c_fc"}};
    const PassTimes adapted = pass_times(config, two_rows, with, gpu(90));
    // The inputs and outputs of four layers: 2 + 6, 2 + 2, 2 + 8 and 8 + 2.
    const double products = 1.5 * tokens * 32 * width / 50;
    CHECK(adapted.layer_forward == Approx(plain.layer_forward + products));
    // The slope of GELU then takes a pass of its own, and biases have no gradients.
    const KernelRates& rates = kernel_rates(90);
    const double passes = dtype == DType::bf16
                              ? rates.gelu_backward.seconds(tokens * 8, gpu(90)) -
                                    rates.bias_gradient.seconds(tokens * 18, gpu(90))
                              : 0;
    CHECK(adapted.layer_backward ==
          Approx(plain.layer_backward - plain.weights + passes + 2 * products));
    CHECK(adapted.weights == 0);
    config.lora.int8_base = true;
    const PassTimes rounded = pass_times(config, two_rows, with, gpu(90));
    const double dequantized = 48 * (8.5 / 8 + width) / 50;
    CHECK(rounded.layer_forward == Approx(adapted.layer_forward + dequantized));
    CHECK(rounded.layer_backward == Approx(adapted.layer_backward + dequantized));
    // Products that arithmetic bounds take the time of their operations.
    config.lora.rank = 1000;
    const PassTimes wide = pass_times(config, two_rows, with, gpu(90));
    const double rate = matrix_rate(with, tokens, gpu(90));
    CHECK(wide.layer_forward - rounded.layer_forward ==
          Approx(2 * tokens * 32 * 1000 / rate - products));
  }
}

TEST_CASE("before compute capability 9.0 the slope of GELU takes a pass of its own", "[plan]") {
  const KernelRates& rates = kernel_rates(89);
  CHECK(rates.attention != kernel_rates(90).attention);
  CHECK(times(gpu(89)).layer_backward ==
        Approx(2 * times(gpu(89)).weights +
               2.5 * tokens * 2 * 4 * 2 / 1000 / rates.attention_backward +
               (tokens * 8 * rates.gelu_backward.bytes / rates.gelu_backward.share +
                2 * tokens * 2 * rates.layernorm_backward.bytes / rates.layernorm_backward.share +
                tokens * 18 * rates.bias_gradient.bytes / rates.bias_gradient.share) /
                   50));
}

TEST_CASE("predicted steps on an H200 are those measured there, within 5 %", "[plan]") {
  struct Measured {
    const char* model;
    std::int64_t batch;
    double milliseconds;
  };
  // bench/results/nvidia-h200-steps.json, bf16, 1024 tokens each.
  for (const auto& [model, batch, milliseconds] :
       {Measured{"gpt2", 16, 30.5}, Measured{"gpt2-medium", 8, 41.2},
        Measured{"gpt2-large", 4, 47.6}, Measured{"gpt2-xl", 4, 92.8}}) {
    const DecoderConfig config = *preset(model);
    MemoryChoice choice{.micro_batch = batch, .head_chunk = 8192};
    choice.placement.blocks.assign(static_cast<std::size_t>(config.n_layer), {});
    // Two moments and the other half of a split master weight.
    const double state = 10 * static_cast<double>(config.parameter_count());
    const StepTime time = predict_step(
        config, choice,
        {.batch = batch, .seq_len = 1024, .dtype = DType::bf16, .resident_state = state},
        known_profile("h200"));
    CAPTURE(model, time.forward, time.backward, time.update);
    CHECK(time.total() * 1e3 == Approx(milliseconds).epsilon(0.05));
  }
}

TEST_CASE("predicted steps of many micro-batches on an H200 are those measured, within 5 %",
          "[plan]") {
  struct Measured {
    const char* model;
    std::int64_t micro_batch;
    bool narrow_gradients;
    double milliseconds;
  };
  // docs/results/gpu.md: plain runs of 64 sequences. Nothing was fitted to them.
  for (const auto& [model, micro_batch, narrow, milliseconds] :
       {Measured{"gpt2-large", 32, false, 652}, Measured{"gpt2-xl", 16, true, 1245}}) {
    const DecoderConfig config = *preset(model);
    MemoryChoice choice{.micro_batch = micro_batch, .head_chunk = 8192, .narrow_gradients = narrow};
    choice.placement.blocks.assign(static_cast<std::size_t>(config.n_layer), {});
    const double state = 10 * static_cast<double>(config.parameter_count());
    const StepTime time =
        predict_step(config, choice,
                     {.batch = 64, .seq_len = 1024, .dtype = DType::bf16, .resident_state = state},
                     known_profile("h200"));
    CAPTURE(model, time.forward, time.backward, time.update);
    CHECK(time.total() * 1e3 == Approx(milliseconds).epsilon(0.05));
  }
}

TEST_CASE("a probe of one precision stands for the other by the ratio of known cards", "[plan]") {
  DeviceProfile narrow = gpu(90), wide = gpu(90);
  narrow.wide_flops = 0;
  wide.narrow_flops = 0;
  StepWork in_f32 = work;
  in_f32.dtype = DType::f32;
  DeviceProfile both = gpu(90);
  both.wide_flops = both.narrow_flops / gpu_narrow_over_wide;
  CHECK(pass_times(tiny, two_rows, in_f32, narrow).layer_forward ==
        Approx(pass_times(tiny, two_rows, in_f32, both).layer_forward));
  wide.wide_flops = both.wide_flops;
  CHECK(times(wide).layer_forward == Approx(times(both).layer_forward));
}

}  // namespace sluice::test::pass_times_test
