// Times whole training steps on random tokens: forward, backward, update. Writes the same JSON as
// bench/peers/torch_gpt2_step.py, so that bench/peers/compare.py can alternate the two.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "apps/cli/command_line.h"
#include "apps/cli/machine.h"
#include "apps/cli/run_program.h"
#include "apps/cli/version.h"
#include "apps/train/pass_graphs.h"
#include "bench/kernels/calibration.h"
#include "bench/kernels/report.h"
#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/cpu/parallel_for.h"
#include "models/decoder/decoder.h"
#include "models/lora/frozen_weights.h"
#include "models/lora/targets.h"
#include "optim/make_optimizer.h"
#include "optim/space/parameter_space.h"

namespace sluice {
namespace {

struct Options {
  std::string model, size = "124M", json;
  PrecisionName precision = PrecisionName::fp32;
  std::optional<DeviceKind> device = DeviceKind::cpu;
  std::int64_t n_layer = 0, n_head = 4, n_embd = 128, vocab_size = 50257;
  std::int64_t batch = 4, seq = 64, threads = 0, steps = 12, skip = 2;
  double grad_clip = 0;
  std::string attention = "mma";
  bool cuda_graph = false, int8_base = false;
  std::int64_t lora_rank = 0;
};

void declare(CommandLine& line, Options& o) {
  const auto shapes = preset_names();
  line.add_choice("--model", o.model, "Model, by its Hugging Face name",
                  {shapes.begin(), shapes.end()});
  line.add_choice("--size", o.size, "Model, by its size", {"124M", "350M", "774M", "1558M"});
  line.add("--n-layer", o.n_layer, "A shape of your own instead");
  line.add("--n-head", o.n_head, "Heads of that shape", 1);
  line.add("--n-embd", o.n_embd, "Width of that shape", 1);
  line.add("--vocab-size", o.vocab_size, "Vocabulary", 1);
  line.add("-b,--batch", o.batch, "Sequences", 1);
  line.add("-t,--seq", o.seq, "Tokens per sequence", 1);
  line.add_choice("--device", o.device, "Device", devices);
  line.add("--threads", o.threads, "CPU threads; 0: all cores", 0, 4096);
  line.add("--steps", o.steps, "Steps in all", 1);
  line.add("--skip", o.skip, "First steps left out");
  line.add_choice("--precision", o.precision, "Arithmetic", precisions);
  line.add("--grad-clip", o.grad_clip, "Largest norm of the gradient; 0: not even measured", 0,
           1e30);
  line.add_choice("--attention", o.attention, "As of train_gpt2", {"mma", "tma"});
  line.add("--cuda-graph", o.cuda_graph, "As of train_gpt2");
  line.add("--lora-rank", o.lora_rank, "Train adapters of all matrices; 0: the weights");
  line.add("--int8-base", o.int8_base, "As of train_gpt2");
  bench::add_json_output(line, o.json, "Write the figures here");
}

/// Time marks within a step. On a GPU they are events, so that the host need not wait between them;
/// the last one waits for the device.
class Marks {
 public:
  explicit Marks(const DevicePtr& device) : device_(device) {
    for (Event& event : events_)
      event = device_->runtime().make_event();
  }

  void set(std::size_t at) {
    device_->runtime().record(events_[at], device_->stream());
    if (at == 0 || at + 1 == count) device_->runtime().synchronize(device_->stream());
    clock_[at] = std::chrono::steady_clock::now();
  }
  double milliseconds(std::size_t from, std::size_t to) const {
    const bool whole = from == 0 && to + 1 == count;
    if (device_->device().kind == DeviceKind::cuda && !whole)
      return device_->runtime().milliseconds(events_[from], events_[to]);
    return std::chrono::duration<double, std::milli>(clock_[to] - clock_[from]).count();
  }

  static constexpr std::size_t count = 4;

 private:
  DevicePtr device_;
  std::array<Event, count> events_;
  std::array<std::chrono::steady_clock::time_point, count> clock_;
};

struct StepTimes {
  double total, forward, backward, update;
};

Tensor random_tokens(const DevicePtr& device, const Options& o, std::uint64_t key) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(o.batch * o.seq));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(uniform(key, i) * static_cast<double>(o.vocab_size));
  return Tensor::from_tokens(device, {o.batch, o.seq}, ids);
}

std::string preset_of(const Options& o) {
  if (!o.model.empty()) return o.model;
  if (o.size == "124M") return "gpt2";
  if (o.size == "350M") return "gpt2-medium";
  return o.size == "774M" ? "gpt2-large" : "gpt2-xl";
}

/// Names the model as the peers do.
std::string name_of(const Options& o) {
  if (o.n_layer > 0) return fmt::format("L{}-H{}-E{}", o.n_layer, o.n_head, o.n_embd);
  const std::string model = preset_of(o);
  if (model == "gpt2") return "124M";
  if (model == "gpt2-medium") return "350M";
  if (model == "gpt2-large") return "774M";
  return model == "gpt2-xl" ? "1558M" : model;
}

DecoderConfig config_of(const Options& o) {
  DecoderConfig config = *preset(preset_of(o));
  if (o.n_layer > 0) {
    config.n_layer = o.n_layer;
    config.n_head = o.n_head;
    config.n_embd = o.n_embd;
  }
  config.vocab_size = o.vocab_size;
  config.n_positions = std::max(config.n_positions, o.seq);
  validate(config);
  if (o.lora_rank > 0)
    config.lora = {.rank = o.lora_rank,
                   .alpha = 2 * static_cast<double>(o.lora_rank),
                   .targets = lora_targets(config, "all"),
                   .int8_base = o.int8_base};
  require_lora_fits(config, "--lora-rank");
  return config;
}

std::vector<StepTimes> train(const Options& o, const DecoderConfig& config,
                             const Precision& precision, const DevicePtr& device) {
  Decoder model(config);
  std::optional<FrozenWeights> frozen;
  if (config.lora.rank > 0) {
    frozen.emplace(model, std::vector<DecoderPart>{{0, config.n_layer}}, device, precision.dtype);
    frozen->initialize(1337);
  }
  ParameterSpace space(model.parameters(), device, precision.dtype, ParameterSpace::Use::training);
  space.initialize(1337);
  const auto optimizer = make_adamw(space, {.weight_decay = 0});
  // A trainer searches for the loss scale; any scale costs the same.
  const double loss_scale = precision.loss_scaling ? 1024 : 1;
  const double scale = loss_scale / static_cast<double>(o.batch * o.seq);
  // A plan takes logits of up to 8192 tokens at a time where memory allows.
  const std::int64_t head_chunk =
      device->device().kind == DeviceKind::cuda ? 8192 : LinearCrossEntropyOptions().chunk;
  const bool measure_norm = o.grad_clip > 0 || precision.loss_scaling;
  std::optional<PassGraphs> graphs;
  if (o.cuda_graph) graphs.emplace(device, accumulator_of(precision.dtype));
  const auto pass = [&](const std::function<void()>& work) {
    if (graphs)
      graphs->run(work);
    else
      work();
  };
  Marks marks(device);
  std::vector<StepTimes> times;
  for (std::int64_t step = 0; step < o.steps; ++step) {
    const Tensor inputs = random_tokens(device, o, static_cast<std::uint64_t>(2 * step));
    const Tensor targets = random_tokens(device, o, static_cast<std::uint64_t>(2 * step + 1));
    marks.set(0);
    space.forget_gradients();
    if (graphs) graphs->choose({.tokens = inputs.view().address});
    Tensor loss;
    pass([&] {
      loss = model.loss(inputs, targets, {.scale = scale, .chunk = head_chunk}).loss;
      if (graphs) graphs->keep_loss(loss);
    });
    marks.set(1);
    pass([&] { backward(loss); });
    if (graphs && graphs->repeats()) space.count_gradients_as_written();
    space.zero_unused_gradients();
    marks.set(2);
    optimizer->step(1e-4, measure_norm ? space.clip_gradients(o.grad_clip, loss_scale) : Tensor());
    marks.set(3);
    times.push_back({marks.milliseconds(0, 3), marks.milliseconds(0, 1), marks.milliseconds(1, 2),
                     marks.milliseconds(2, 3)});
    fmt::print(
        "step {}: loss {:.6f} ({:.1f} ms: forward and head {:.1f}, backward {:.1f}, update "
        "{:.1f})\n",
        step, (graphs ? graphs->loss() : loss).item() / loss_scale, times.back().total,
        times.back().forward, times.back().backward, times.back().update);
  }
  return times;
}

int run(const Options& o) {
  cpu::set_threads(static_cast<int>(o.threads));
  const DecoderConfig config = config_of(o);
  if (!o.json.empty()) bench::require_writable(o.json);
  const DeviceKind kind = choose_device(o.device);
  Precision precision = resolve_precision(o.precision, kind);
  precision.wgmma_attention = o.attention == "tma";
  const DevicePtr device = make_device(kind, precision);
  if (precision.wgmma_attention && !device->runtime().info().wgmma_attention)
    fail("--attention tma needs a GPU of compute capability 9.0; leave it out", ErrorKind::usage);
  if (o.int8_base && o.lora_rank == 0)
    fail("--int8-base is for adapters: give --lora-rank too", ErrorKind::usage);
  if (o.cuda_graph && kind != DeviceKind::cuda)
    fail("--cuda-graph is for a GPU; leave it out", ErrorKind::usage);
  const auto times = train(o, config, precision, device);
  // Read before the calibration, which takes memory of its own.
  const double tensors = static_cast<double>(device->arena().peak()) / (1 << 20);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double resident = static_cast<double>(usage.ru_maxrss) / 1024;

  const auto skip = std::min(o.skip, o.steps - 1);
  std::vector<double> totals;
  for (auto it = times.begin() + skip; it != times.end(); ++it)
    totals.push_back(it->total);
  const double median = bench::quantile(totals, 0.5);
  const double p20 = bench::quantile(totals, 0.2);
  const double p80 = bench::quantile(totals, 0.8);
  const double rate = static_cast<double>(o.batch * o.seq) / median * 1e3;
  const double flops = rate * config.flops_per_token(o.seq);
  bench::Calibration calibration(device, {.warmup_ms = 50, .measured_ms = 200});
  const double peak = calibration.gemm_rate(precision.dtype);
  fmt::print(
      "median {:.1f} ms (p20 {:.1f}, p80 {:.1f}) | {:.1f} tokens/s | {:.0f} GFLOP/s, {:.1f}% of a "
      "{} product's {:.0f} | tensors {:.0f} MiB, resident {:.0f} MiB at most\n",
      median, p20, p80, rate, flops / 1e9, flops / peak * 100,
      calibration.gemm_shape(precision.dtype), peak / 1e9, tensors, resident);
  if (o.json.empty()) return 0;
  const DeviceInfo info = device->runtime().info();
  const nlohmann::ordered_json figures{{"program", "sluice"},
                                       {"version", "0.1.0"},
                                       {"commit", commit()},
                                       {"device", info.name},
                                       {"driver", info.driver},
                                       {"model", name_of(o)},
                                       {"batch", o.batch},
                                       {"seq", o.seq},
                                       {"threads", cpu::threads()},
                                       {"precision", name_of(precision)},
                                       {"grad_clip", o.grad_clip},
                                       {"attention", o.attention},
                                       {"cuda_graph", o.cuda_graph},
                                       {"lora_rank", o.lora_rank},
                                       {"int8_base", o.int8_base},
                                       {"steps_ms", totals},
                                       {"median_ms", median},
                                       {"p20_ms", p20},
                                       {"p80_ms", p80},
                                       {"tokens_per_second", rate},
                                       {"gflops", flops / 1e9},
                                       {"gemm_peak_gflops", peak / 1e9},
                                       {"mfu", flops / peak},
                                       {"tensor_peak_mib", tensors},
                                       {"peak_rss_mib", resident}};
  bench::write_file(o.json, figures.dump() + "\n");
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_program("bench_step", [&] {
    sluice::Options options;
    sluice::CommandLine line("bench_step", "Times whole training steps.");
    sluice::declare(line, options);
    return line.parse(argc, argv) ? sluice::run(options) : 0;
  });
}
