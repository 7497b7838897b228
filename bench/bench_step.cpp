// Times whole training steps on random tokens: forward, backward, update. Writes the same JSON as
// bench/peers/torch_gpt2_step.py, so that bench/peers/compare.py can alternate the two.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/train/command_line.h"
#include "apps/train/model_folder.h"
#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/cpu/parallel_for.h"
#include "models/gpt2/gpt2.h"
#include "optim/optimizer.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string size = "124M", precision = "fp32", json;
  std::int64_t n_layer = 0, n_head = 4, n_embd = 128, vocab_size = 50257;
  std::int64_t batch = 4, seq = 64, threads = 0, steps = 12, skip = 2;
};

void declare(CommandLine& line, Options& o) {
  line.add_choice("--size", o.size, "Model", {"124M", "350M", "774M", "1558M"});
  line.add("--n-layer", o.n_layer, "A shape of your own instead of --size");
  line.add("--n-head", o.n_head, "Heads of that shape", 1);
  line.add("--n-embd", o.n_embd, "Width of that shape", 1);
  line.add("--vocab-size", o.vocab_size, "Vocabulary", 1);
  line.add("-b,--batch", o.batch, "Sequences", 1);
  line.add("-t,--seq", o.seq, "Tokens per sequence", 1);
  line.add("--threads", o.threads, "CPU threads; 0: all cores", 0, 4096);
  line.add("--steps", o.steps, "Steps in all", 1);
  line.add("--skip", o.skip, "First steps left out");
  line.add_choice("--precision", o.precision, "Arithmetic", {"fp32", "bf16"});
  line.add("--json", o.json, "Write the figures here");
}

struct StepTimes {
  double forward, backward, update;
  double total() const { return forward + backward + update; }
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double milliseconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

Tensor random_tokens(const DevicePtr& device, const Options& o, std::uint64_t key) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(o.batch * o.seq));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(uniform(key, i) * static_cast<double>(o.vocab_size));
  return Tensor::from_tokens(device, {o.batch, o.seq}, ids);
}

GPT2Config config_of(const Options& o) {
  GPT2Config config = *preset(o.size == "124M"   ? "gpt2"
                              : o.size == "350M" ? "gpt2-medium"
                              : o.size == "774M" ? "gpt2-large"
                                                 : "gpt2-xl");
  if (o.n_layer > 0) {
    config.n_layer = o.n_layer;
    config.n_head = o.n_head;
    config.n_embd = o.n_embd;
  }
  config.vocab_size = o.vocab_size;
  config.n_positions = std::max(config.n_positions, o.seq);
  return config;
}

int run(const Options& o) {
  cpu::set_threads(static_cast<int>(o.threads));
  const auto device = make_cpu_device();
  const GPT2Config config = config_of(o);
  GPT2 model(config);
  ParameterSpace space(model.parameters(), device, parse_precision(o.precision),
                       ParameterSpace::Use::training);
  space.initialize(1337);
  const auto optimizer = make_adamw(space, {.weight_decay = 0});
  std::vector<StepTimes> times;
  for (std::int64_t step = 0; step < o.steps; ++step) {
    const Tensor inputs = random_tokens(device, o, static_cast<std::uint64_t>(2 * step));
    const Tensor targets = random_tokens(device, o, static_cast<std::uint64_t>(2 * step + 1));
    const auto start = Clock::now();
    space.forget_gradients();
    const auto loss =
        model.loss(inputs, targets, {.scale = 1.0 / static_cast<double>(o.batch * o.seq)});
    const auto forward = Clock::now();
    backward(loss.loss);
    space.settle_gradients();
    const auto backward_done = Clock::now();
    optimizer->step(1e-4, 1);
    const double value = loss.loss.item();
    const auto end = Clock::now();
    times.push_back({milliseconds_between(start, forward),
                     milliseconds_between(forward, backward_done),
                     milliseconds_between(backward_done, end)});
    fmt::print(
        "step {}: loss {:.6f} ({:.1f} ms: forward and head {:.1f}, backward {:.1f}, update "
        "{:.1f})\n",
        step, value, times.back().total(), times.back().forward, times.back().backward,
        times.back().update);
  }
  const auto skip = std::min(o.skip, o.steps - 1);
  std::vector<double> totals;
  for (auto it = times.begin() + skip; it != times.end(); ++it)
    totals.push_back(it->total());
  const double middle = median(totals);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double rate = static_cast<double>(o.batch * o.seq) / middle * 1e3;
  const double flops = rate * config.flops_per_token(o.seq);
  fmt::print(
      "median {:.1f} ms | {:.1f} tokens/s | {:.0f} GFLOP/s | tensors {:.0f} MiB, resident "
      "{:.0f} MiB at most\n",
      middle, rate, flops / 1e9, static_cast<double>(device->arena().peak()) / (1 << 20),
      static_cast<double>(usage.ru_maxrss) / 1024);
  if (o.json.empty()) return 0;
  const std::string name =
      o.n_layer > 0 ? fmt::format("L{}-H{}-E{}", o.n_layer, o.n_head, o.n_embd) : o.size;
  std::ofstream(o.json) << nlohmann::ordered_json{
      {"program", "sluice"},
      {"version", "0.1.0"},
      {"model", name},
      {"batch", o.batch},
      {"seq", o.seq},
      {"threads", cpu::threads()},
      {"precision", o.precision},
      {"steps_ms", totals},
      {"median_ms", middle},
      {"tokens_per_second", rate},
      {"gflops", flops / 1e9},
      {"tensor_peak_mib", static_cast<double>(device->arena().peak()) / (1 << 20)},
      {"peak_rss_mib", static_cast<double>(usage.ru_maxrss) / 1024}};
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
