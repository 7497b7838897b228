// Times generation with random weights and compares it with the memory's speed: each token reads
// every weight once, so the read bandwidth bounds the tokens per second.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <vector>

#include "apps/cli/command_line.h"
#include "apps/cli/machine.h"
#include "apps/cli/run_program.h"
#include "apps/cli/version.h"
#include "bench/kernels/report.h"
#include "bench/kernels/timer.h"
#include "kernels/cpu/parallel_for.h"
#include "models/decoder/generate.h"
#include "optim/space/parameter_space.h"

namespace sluice {
namespace {

constexpr Choices<PrecisionName, 3> cpu_precisions{{precisions[0], precisions[2], precisions[3]}};

struct Options {
  std::string model = "gpt2", json;
  PrecisionName precision = PrecisionName::fp32;
  std::int64_t prompt = 16, tokens = 32, rounds = 5, threads = 0, megabytes = 500, top_k = 0;
  double temperature = 0.8, top_p = 1;
};

void declare(CommandLine& line, Options& o) {
  const auto shapes = preset_names();
  line.add_choice("--model", o.model, "Shape", {shapes.begin(), shapes.end()});
  line.add_choice("--precision", o.precision, "Arithmetic", cpu_precisions);
  line.add("--prompt", o.prompt, "Tokens to start from", 1, 1024);
  line.add("--tokens", o.tokens, "Tokens that are timed in each round", 1, 1024);
  line.add("--rounds", o.rounds, "Rounds of reading and generating", 1);
  line.add("--threads", o.threads, "CPU threads; 0: all cores", 0, 4096);
  line.add("--megabytes", o.megabytes, "Memory that the plain read goes over", 1, 1 << 20);
  line.add("--temperature", o.temperature, "0: greedy", 0, 1e6);
  line.add("--top-k", o.top_k, "Only the k most likely tokens; 0: all");
  line.add("--top-p", o.top_p, "Only the likeliest tokens that reach this probability", 0, 1);
  bench::add_json_output(line, o.json, "Write the figures here");
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Sums `streams` contiguous parts of the numbers at once, as fast as possible.
template <int streams>
std::uint64_t sum_of(const std::uint64_t* from, std::int64_t count) {
  const std::int64_t each = count / streams;
  std::uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < each; ++i)
    for (int stream = 0; stream < streams; ++stream)
      sum += from[stream * each + i];
  for (std::int64_t i = each * streams; i < count; ++i)
    sum += from[i];
  return sum;
}

/// Memory allocated like tensors; the plain read reads it.
class ReadBuffer {
 public:
  ReadBuffer(const DevicePtr& device, std::int64_t bytes)
      : memory_(Tensor::empty(device, {bytes}, DType::u8)),
        numbers_(reinterpret_cast<std::uint64_t*>(memory_.view().address),
                 static_cast<std::size_t>(bytes) / sizeof(std::uint64_t)) {
    std::ranges::fill(numbers_, 1);
  }

  /// Bytes per second. Some processors read one long stream fastest, some several at once; each is
  /// tried three times, and the better median counts.
  double rate() const {
    std::vector<double> one, several;
    for (int pass = 0; pass < 3; ++pass) {
      one.push_back(seconds<1>());
      several.push_back(seconds<8>());
    }
    return static_cast<double>(numbers_.size_bytes()) /
           std::min(bench::quantile(one, 0.5), bench::quantile(several, 0.5));
  }

 private:
  template <int streams>
  double seconds() const {
    constexpr std::int64_t grain = 1 << 17;
    const auto size = static_cast<std::int64_t>(numbers_.size());
    std::vector<std::uint64_t> sums(static_cast<std::size_t>((size + grain - 1) / grain));
    const auto start = std::chrono::steady_clock::now();
    cpu::parallel_ranges(size, grain, [&](std::int64_t begin, std::int64_t end) {
      sums[static_cast<std::size_t>(begin / grain)] =
          sum_of<streams>(numbers_.data() + begin, end - begin);
    });
    const double took = seconds_since(start);
    // Every number is 1. Using the sums keeps the compiler from dropping the reads.
    check(std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) == numbers_.size(),
          "the plain read has lost something");
    return took;
  }

  Tensor memory_;
  std::span<std::uint64_t> numbers_;
};

struct Round {
  double prompt_ms, token_ms;
};

Round generate_once(const Decoder& model, const DevicePtr& device, const Options& o,
                    std::uint64_t seed) {
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(o.prompt));
  for (std::size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<std::int32_t>((i * 7919 + seed) % 50257);
  std::vector<double> times;
  const auto start = std::chrono::steady_clock::now();
  generate(model, device, prompt,
           {.max_tokens = o.tokens + 1,
            .sampling =
                {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .seed = seed}},
           [&](std::int32_t) {
             times.push_back(seconds_since(start) * 1e3);
             return true;
           });
  return {times.front(), (times.back() - times.front()) / static_cast<double>(o.tokens)};
}

std::string spread(const std::vector<double>& values, int digits) {
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", bench::quantile(values, 0.5), digits,
                     bench::quantile(values, 0), digits, bench::quantile(values, 1), digits);
}

int run(const Options& o) {
  cpu::set_threads(static_cast<int>(o.threads));
  const DecoderConfig config = *preset(o.model);
  if (o.prompt + o.tokens > config.n_positions)
    fail(fmt::format("--prompt {} and --tokens {} do not fit a context of {}", o.prompt, o.tokens,
                     config.n_positions),
         ErrorKind::usage);
  if (!o.json.empty()) bench::require_writable(o.json);
  const Precision precision = resolve_precision(o.precision, DeviceKind::cpu);
  const DevicePtr device = make_device(DeviceKind::cpu, precision);
  Decoder model(config);
  ParameterSpace space(model.parameters(), device, precision.dtype, ParameterSpace::Use::inference);
  space.initialize(1337);
  const double bytes =
      static_cast<double>(space.parameters()) * static_cast<double>(size_of(precision.dtype));
  const ReadBuffer buffer(device, o.megabytes * 1000000);

  generate_once(model, device, o, 0);  // warm-up: touches memory and builds caches
  std::vector<double> rates, tokens, ratios, prompts;
  for (std::int64_t round = 0; round < o.rounds; ++round) {
    const double before = buffer.rate();
    const Round made = generate_once(model, device, o, static_cast<std::uint64_t>(round));
    // Averages two reads: other programs may take bandwidth between two measurements.
    const double rate = (before + buffer.rate()) / 2;
    rates.push_back(rate / 1e9);
    tokens.push_back(1e3 / made.token_ms);
    ratios.push_back(bytes * tokens.back() / rate);
    prompts.push_back(made.prompt_ms);
    fmt::print(
        "round {}: read {:.1f} GB/s, {:.2f} ms a token, {:.1f} tokens/s, {:.0f}% of the bandwidth; "
        "prompt of {}: {:.0f} ms\n",
        round, rates.back(), made.token_ms, tokens.back(), ratios.back() * 100, o.prompt,
        made.prompt_ms);
  }
  fmt::print("{} {}, {} threads, {:.1f} MB of weights: {} tokens/s, read {} GB/s, ratio {}\n",
             o.model, name_of(precision), cpu::threads(), bytes / 1e6, spread(tokens, 1),
             spread(rates, 1), spread(ratios, 2));
  if (o.json.empty()) return 0;
  const nlohmann::ordered_json figures{{"program", "sluice"},
                                       {"commit", commit()},
                                       {"device", device->runtime().info().name},
                                       {"model", o.model},
                                       {"precision", name_of(precision)},
                                       {"threads", cpu::threads()},
                                       {"weight_bytes", bytes},
                                       {"read_gb_per_second", rates},
                                       {"tokens_per_second", tokens},
                                       {"ratio", ratios},
                                       {"prompt", o.prompt},
                                       {"prompt_ms", prompts}};
  bench::write_file(o.json, figures.dump() + "\n");
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_program("bench_decode", [&] {
    sluice::Options options;
    sluice::CommandLine line("bench_decode",
                             "Times generation against reading the weights from memory.");
    sluice::declare(line, options);
    return line.parse(argc, argv) ? sluice::run(options) : 0;
  });
}
