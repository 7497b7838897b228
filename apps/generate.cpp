#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ranges>

#include "apps/checkpoint/model_folder.h"
#include "apps/cli/command_line.h"
#include "apps/cli/machine.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/cli/sizes.h"
#include "apps/cli/terminal.h"
#include "apps/cli/text_printer.h"
#include "apps/data/dataset.h"
#include "apps/data/encode_text.h"
#include "apps/data/special_names.h"
#include "apps/flags/no_effect.h"
#include "apps/plan/cost/device_profile.h"
#include "apps/plan/generation_plan.h"
#include "engine/io/utf8.h"
#include "kernels/cpu/parallel_for.h"
#include "models/decoder/config_json/generation_config.h"
#include "models/decoder/generate.h"
#include "models/text/tokenizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model, adapter, prompt, prompts, tokens, stop, tokenizer_dir;
  PrecisionName precision = PrecisionName::fp32;
  std::optional<DeviceKind> device;
  std::optional<std::size_t> gpu_memory;
  std::optional<std::int64_t> context;
  std::int64_t max_tokens = 256, top_k = 0, num = 1, batch_size = 8, threads = 0;
  double temperature = 0.8, top_p = 1;
  std::uint64_t seed = 0;
  bool special = false, no_cache = false;
  GivenFlags given{};
};

void declare(CommandLine& line, Options& o) {
  line.group("Model");
  line.add("--model", o.model, "Hugging Face folder, train_gpt2's OUTPUT, or a checkpoint of it");
  line.add("--adapter", o.adapter, "Folder of LoRA adapters, in PEFT's form, to add to the model");
  line.require("--model");
  line.add("--tokenizer-dir", o.tokenizer_dir, "Folder of the tokenizer; default: the model's");
  line.add_choice("--precision", o.precision, "Arithmetic", precisions);
  line.group("Text");
  line.add_text("--prompt", o.prompt, "Text to continue; @FILE reads a file, - the standard input");
  line.add("--prompts", o.prompts,
           "File of prompts: one a line, or JSON Lines with a field prompt; prints a line of JSON "
           "for each continuation");
  line.add("--tokens", o.tokens, "Token ids to continue, \"1 2 3\"; prints ids");
  line.add("--special", o.special,
           "Text such as <|endoftext|> becomes the special token of that name");
  line.add("--max-tokens", o.max_tokens, "New tokens at most");
  line.add_text("--stop", o.stop, "End when this text appears");
  line.add("--num", o.num, "Continuations", 1);
  line.add("--batch-size", o.batch_size, "With --prompts: continuations that are made at a time", 1,
           1 << 10);
  line.group("Sampling");
  line.add("--temperature", o.temperature, "0: greedy", 0, 1e6);
  line.add("--top-k", o.top_k, "Only the k most likely tokens; 0: all");
  line.add("--top-p", o.top_p, "Only the likeliest tokens that reach this probability", 0, 1);
  line.add("--seed", o.seed, "The same seed gives the same text");
  line.group("Machine");
  line.add_choice("--device", o.device, "Where to compute", devices);
  line.add_size("--gpu-memory", o.gpu_memory,
                "Budget, such as 11GiB; default: what the GPU has free. Weights of blocks that do "
                "not fit rest in host memory and are copied for each token");
  line.add("--context", o.context,
           "Positions of the text that count; default: as many as the model has", 1,
           std::int64_t{1} << 30);
  line.add("--threads", o.threads, "CPU threads; 0: all cores", 0, 4096);
  line.add("--no-cache", o.no_cache, "Compute every token from the whole sequence (a check)");
}

std::string read_prompt(const std::string& prompt) {
  if (prompt == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  if (prompt.starts_with('@')) return read_text(prompt.substr(1));
  return prompt;
}

/// Prints unsafe characters escaped if stdout is a terminal, and the exact bytes otherwise.
void print_text(const std::string& text) {
  const std::string shown = is_terminal(STDOUT_FILENO) ? printable(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

/// Returns the prompts of a file, in its order.
std::vector<std::string> read_prompts(const std::string& file) {
  const TextOptions options{.field = "prompt", .may_skip = false};
  std::vector<std::string> prompts;
  const DataFiles files = find_data("--prompts", {file});
  if (files.texts.empty())
    fail(fmt::format("--prompts {}: these are tokens; give a text", file), ErrorKind::usage);
  const bool json = is_json_lines(files.texts.front(), options.format);
  const TextReport report = TextSource(files, options).read([&](const Document& document) {
    if (json) return prompts.emplace_back(document.text), void();
    for (const auto line : std::views::split(document.text, '\n')) {
      std::string_view text(line.begin(), line.end());
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (!text.empty()) prompts.emplace_back(text);
    }
  });
  if (!report.skipped.none())
    fmt::print(stderr, "generate: left out {}\n", printable(report.skipped.text()));
  if (prompts.empty())
    fail(fmt::format("--prompts {}: no line has a text", file), ErrorKind::usage);
  return prompts;
}

/// Returns how many bytes of the GPU the text may take.
std::size_t allowed_bytes(const Options& o, const Runtime& gpu) {
  const std::size_t most = gpu.capacity();
  if (!o.gpu_memory) return most;
  const DeviceInfo info = gpu.info();
  if (*o.gpu_memory > info.memory)
    fail(fmt::format("--gpu-memory {}: this GPU has {}", spell_bytes(*o.gpu_memory),
                     format_bytes(info.memory)),
         ErrorKind::usage);
  const std::size_t context = info.emulated ? 0 : usual_context;
  return std::min(most, *o.gpu_memory - std::min(*o.gpu_memory, context));
}

std::string rounded(double value) {
  return fmt::format("{:.{}f}", value, value < 1 ? 2 : value < 10 ? 1 : 0);
}

/// Measures how many bytes per second of weights are copied to the GPU.
double copy_rate(WeightRing& ring, const DeviceContext& device, std::int64_t layers) {
  ring.take_moved();
  const Stopwatch watch;
  for (std::int64_t layer = std::max<std::int64_t>(0, layers - 3); layer < layers; ++layer)
    ring.enter(Decoder::section_of(layer));
  device.runtime().synchronize(device.stream());
  return static_cast<double>(ring.take_moved().to_device) / watch.milliseconds() * 1e3;
}

/// Loads the model, with the weights of as many blocks on the GPU as fit.
LoadedModel load(const Options& o, const ModelSource& source, const DevicePtr& device, DType dtype,
                 std::span<const std::int32_t> prompt, const Generation& generation,
                 std::size_t at_once = 1) {
  DecoderConfig config = source.config;
  shorten_context(config, o.context);
  require_tokens(config, prompt);
  constexpr auto use = ParameterSpace::Use::inference;
  if (device->device().kind != DeviceKind::cuda) {
    device->reserve(0);
    return load_model(source, device, dtype, use, o.context);
  }
  const Runtime& gpu = device->runtime();
  const GenerationPlan plan = plan_generation({.config = config,
                                               .dtype = dtype,
                                               .prompt = prompt.size(),
                                               .options = generation,
                                               .workspace = gpu.workspace_bytes(),
                                               .at_once = at_once},
                                              allowed_bytes(o, gpu));
  device->reserve(plan.device);
  if (plan.host_blocks == 0) return load_model(source, device, dtype, use, o.context);
  const std::size_t there = make_cpu_runtime()->capacity();
  if (plan.host + usual_gpu_process > there)
    fail(fmt::format("weights of {} of {} blocks do not fit on the GPU, and take {} bytes of host "
                     "memory beside the process, more than this machine has",
                     plan.host_blocks, config.n_layer, plan.host),
         ErrorKind::usage);
  const HostMemory host = make_host_memory(device, plan.host);
  LoadedModel loaded = load_model(source, device, dtype, use, o.context,
                                  {.host_blocks = plan.host_blocks, .host = host});
  const double rate = copy_rate(*loaded.ring, *device, config.n_layer);
  fmt::print(
      stderr,
      "generate: weights of {} of {} blocks rest in host memory, and a token copies {} of "
      "them: at {} GB/s at most {} tokens/s{}\n",
      plan.host_blocks, config.n_layer, format_bytes(plan.copied_per_token), rounded(rate / 1e9),
      rounded(rate / static_cast<double>(plan.copied_per_token) * static_cast<double>(at_once)),
      host.unpinned ? "; the system refused to pin that memory" : "");
  return loaded;
}

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, const std::string& prompt,
                                 bool special) {
  auto ids = tokenizer.begin_of_text();
  std::ranges::copy(encode(tokenizer, prompt, special), std::back_inserter(ids));
  const auto end = tokenizer.end_of_text();
  if (ids.empty()) ids = {end ? *end : tokenizer.encode("\n").front()};
  return ids;
}

/// Returns true for a token that ends a text.
bool is_end(std::int32_t id, const Tokenizer& tokenizer, const std::vector<std::int64_t>& ends) {
  return id == tokenizer.end_of_text() || std::ranges::find(ends, id) != ends.end();
}

/// Takes what generation_config.json says instead of the defaults of flags, but not of flags that
/// were given, and says so.
void take_defaults(Options& o, const CommandLine& line, const GenerationDefaults& defaults) {
  std::string taken;
  const auto take = [&](const char* flag, auto& value, const auto& makers) {
    if (!makers || line.given(flag)) return;
    value = *makers;
    taken += fmt::format(" {} {}", flag, value);
  };
  take("--temperature", o.temperature, defaults.temperature);
  take("--top-k", o.top_k, defaults.top_k);
  take("--top-p", o.top_p, defaults.top_p);
  take("--max-tokens", o.max_tokens, defaults.max_tokens);
  if (!taken.empty())
    say_note(fmt::format("the model's {} gives{}; flags win", generation_config_file, taken));
  if (!defaults.unused.empty())
    say_note(fmt::format("the model's {} has {}, which is not supported", generation_config_file,
                         fmt::join(defaults.unused, ", ")));
}

/// Prints a continuation as an object. Bytes that are not UTF-8 become U+FFFD.
void print_line(const std::string& prompt, const std::string& completion) {
  const nlohmann::ordered_json line{{"prompt", prompt}, {"completion", completion}};
  say_made(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

/// The continuations of many prompts, printed in their order as soon as they and all before them
/// have ended.
class Answers {
 public:
  Answers(const std::string& stop, const std::vector<std::string>& prompts, std::size_t each)
      : prompts_(prompts), each_(each), texts_(prompts.size() * each) {
    for (std::string& text : texts_)
      printers_.emplace_back(stop, [&text](const std::string& more) { text += more; });
    ended_.resize(texts_.size());
  }
  TextPrinter& printer(std::size_t i) { return printers_[i]; }
  void end(std::size_t i) {
    printers_[i].finish();
    ended_[i] = true;
    for (; printed_ < texts_.size() && ended_[printed_]; ++printed_)
      print_line(prompts_[printed_ / each_], texts_[printed_]);
  }

 private:
  const std::vector<std::string>& prompts_;
  std::size_t each_;
  std::vector<std::string> texts_;
  std::vector<TextPrinter> printers_;
  std::vector<bool> ended_;
  std::size_t printed_ = 0;
};

/// Refuses flags that would change nothing.
void require_effects(const Options& o) {
  refuse_without_effect(
      o.given,
      {{o.prompts.empty(), "--batch-size", "is for --prompts: one text is made at a time"},
       {!o.tokens.empty(), "--tokenizer-dir --special --stop",
        "is for text, and --tokens takes and prints ids"},
       {o.temperature == 0, "--top-k --top-p", "is for sampling, and --temperature 0 is greedy"}});
}

int run(Options& o, const CommandLine& line) {
  require_effects(o);
  cpu::set_threads(static_cast<int>(o.threads));
  if (!o.prompts.empty() && (!o.prompt.empty() || !o.tokens.empty()))
    fail("give --prompts alone, without --prompt and --tokens", ErrorKind::usage);
  if (o.prompt.empty() == o.tokens.empty() && !o.tokens.empty())
    fail("give --prompt or --tokens, not both", ErrorKind::usage);
  if (!o.prompts.empty() && o.no_cache)
    fail("--no-cache computes one text at a time; give --prompt", ErrorKind::usage);
  const DeviceKind kind = choose_device(o.device);
  if (o.gpu_memory && kind != DeviceKind::cuda)
    fail("--gpu-memory: this run computes on the CPU", ErrorKind::usage);
  const Precision precision = resolve_precision(o.precision, kind);
  const auto device = open_device(kind, precision);
  const ModelSource source = find_model(o.model, o.adapter);
  const GenerationDefaults defaults =
      read_generation_config(source.folder, source.config.vocab_size);
  take_defaults(o, line, defaults);
  const auto& ends = defaults.end_ids.empty() ? source.config.end_ids : defaults.end_ids;
  Generation generation{.max_tokens = o.max_tokens,
                        .sampling = {.temperature = o.temperature,
                                     .top_k = o.top_k,
                                     .top_p = o.top_p,
                                     .seed = o.seed},
                        .use_cache = !o.no_cache};
  if (!o.tokens.empty()) {
    const auto ids = parse_token_ids(o.tokens);
    if (ids.empty()) fail("--tokens holds no token id", ErrorKind::usage);
    const LoadedModel loaded = load(o, source, device, precision.dtype, ids, generation);
    for (std::int64_t n = 0; n < o.num; ++n, ++generation.sampling.seed)
      fmt::print("{}\n", fmt::join(generate(*loaded.model, device, ids, generation), " "));
    return 0;
  }
  const auto tokenizer =
      o.tokenizer_dir.empty() ? load_tokenizer(source) : load_tokenizer(o.tokenizer_dir);
  generation.sampling.vocabulary = tokenizer->vocab_size();
  require_special(*tokenizer, o.special);
  const bool many = !o.prompts.empty();
  const std::vector<std::string> prompts =
      many ? read_prompts(o.prompts) : std::vector{read_prompt(o.prompt)};
  std::vector<std::vector<std::int32_t>> ids;
  SpecialNames names(*tokenizer, o.special);
  for (const std::string& prompt : prompts) {
    names.look_at(prompt);
    ids.push_back(ids_of(*tokenizer, prompt, o.special));
  }
  names.warn(many ? "--prompts" : "--prompt");
  // The longest prompt takes the most memory, so it decides for all.
  const auto& longest =
      *std::ranges::max_element(ids, {}, [](const auto& one) { return one.size(); });
  const std::size_t texts = prompts.size() * static_cast<std::size_t>(o.num);
  const std::size_t at_once =
      many ? std::min(texts, static_cast<std::size_t>(o.batch_size)) : std::size_t{1};
  const LoadedModel loaded = load(o, source, device, precision.dtype, longest, generation, at_once);
  const auto continues = [&](TextPrinter& printer, std::int32_t id) {
    return !is_end(id, *tokenizer, ends) && printer.add(tokenizer->decode(std::span(&id, 1)));
  };
  if (many) {
    Answers answers(o.stop, prompts, static_cast<std::size_t>(o.num));
    std::vector<GenerationRequest> requests;
    for (std::size_t i = 0; i < texts; ++i) {
      const std::size_t prompt = i / static_cast<std::size_t>(o.num);
      GenerationRequest& request = requests.emplace_back(GenerationRequest{
          .prompt = ids[prompt],
          .options = generation,
          .on_token = [&, i](std::int32_t id) { return continues(answers.printer(i), id); },
          .on_end = [&, i] { answers.end(i); }});
      request.options.sampling.seed += i % static_cast<std::size_t>(o.num);
      request.options.sampling.prompt = static_cast<std::int64_t>(prompt) + 1;
    }
    generate_many(*loaded.model, device, requests, at_once);
    return 0;
  }
  for (std::int64_t n = 0; n < o.num; ++n, ++generation.sampling.seed) {
    if (n > 0) fmt::print("\n---\n");
    print_text(prompts.front());
    TextPrinter printer(o.stop, print_text);
    const auto end_text = [&] {
      printer.finish();
      fmt::print("\n");
    };
    try {
      generate(*loaded.model, device, ids.front(), generation,
               [&](std::int32_t id) { return continues(printer, id); });
    } catch (const Error&) {
      end_text();  // the message has a line of its own
      std::fflush(stdout);
      throw;
    }
    end_text();
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_program("generate", [&] {
    sluice::Options options;
    sluice::CommandLine line("generate", "Continues text with a trained model.");
    sluice::declare(line, options);
    const auto defaults = line.values();
    if (!line.parse(argc, argv)) return 0;
    options.given = sluice::given_flags(line, defaults);
    return sluice::run(options, line);
  });
}
