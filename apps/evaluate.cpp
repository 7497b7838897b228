#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "apps/checkpoint/model_folder.h"
#include "apps/cli/command_line.h"
#include "apps/cli/machine.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/data/dataset.h"
#include "apps/data/encode_text.h"
#include "apps/data/same_files.h"
#include "apps/flags/no_effect.h"
#include "apps/train/evaluation.h"
#include "engine/io/section_sums.h"
#include "engine/process_state.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cross_entropy.h"
#include "parallel/comm/keep_alive.h"
#include "parallel/comm/world.h"

// Computes the loss of a model on all tokens of some data. Ranks of mpirun divide the sequences.

namespace sluice {
namespace {

struct Options {
  std::string model, adapter, tokenizer_dir;
  PrecisionName precision = PrecisionName::fp32;
  std::optional<DeviceKind> device;
  std::vector<std::string> data;
  TextOptions text;
  std::optional<std::int64_t> seq_len;
  std::int64_t max_tokens = 0, threads = 0;
  bool pack = false, json = false;
  GivenFlags given{};
};

void declare(CommandLine& line, Options& o) {
  line.group("What");
  line.add("--model", o.model, "Model folder, OUTPUT of train_gpt2, or a checkpoint");
  line.add("--adapter", o.adapter, "Folder of LoRA adapters, in PEFT's form, to add to the model");
  line.require("--model");
  line.add("--data", o.data, "Text, tokens, or a folder, as train_gpt2 takes them");
  line.require("--data");
  line.add("--tokenizer-dir", o.tokenizer_dir, "Folder of the tokenizer; default: the model's");
  line.add("--seq-len", o.seq_len,
           "Tokens per sequence; default: the model's context, or what pairs need", 1);
  line.add("--pack", o.pack, "Puts as many pairs into each sequence as fit, as train_gpt2 does");
  line.add("--max-tokens", o.max_tokens, "Tokens at most, from the beginning; 0: all");
  declare_text_options(line, o.text, false);
  line.add("--json", o.json, "Print one JSON object");
  line.group("Machine");
  line.add_choice("--precision", o.precision, "Arithmetic", precisions);
  line.add_choice("--device", o.device, "Where to compute", devices);
  line.add("--threads", o.threads, "CPU threads; 0: all cores, divided by the ranks", 0, 4096);
}

/// The loss over all tokens and the counts that belong to it.
struct Score {
  std::int64_t sequences = 0, tokens = 0;  ///< tokens: predicted ones
  std::int64_t last = 0;                   ///< length of a shorter last sequence; 0: none
  double loss = 0;                         ///< mean over the tokens, in nats
  std::optional<std::int64_t> bytes{};     ///< the predicted text's bytes; none without a tokenizer
  std::string not_finite{};                ///< the first sequences whose loss is not; "": none

  double bits_per_byte() const {
    return loss * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(*bytes);
  }
};

std::int64_t bytes_of(const Tokenizer& tokenizer, std::span<const std::int32_t> targets) {
  std::int64_t bytes = 0;
  const auto end = tokenizer.end_of_text();  // no text, but what separates texts
  for (const std::int32_t& id : targets)
    bytes += id != no_target && id != end && id < tokenizer.vocab_size()
                 ? static_cast<std::int64_t>(tokenizer.decode(std::span(&id, 1)).size())
                 : 0;
  return bytes;
}

/// Tokens that are computed together: batches of whole sequences, then sequences too few for a
/// batch, then a rest too short for a sequence.
struct Piece {
  std::int64_t first, rows, length;  ///< first: number of its first sequence
};

/// `predicted`: tokens, those of padding included.
std::vector<Piece> pieces_of(std::int64_t predicted, std::int64_t length) {
  const EvaluationBatches whole(predicted + 1, predicted, length);
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < whole.count(); ++i)
    pieces.push_back({i * whole.rows(), whole.rows(), length});
  std::int64_t next = whole.sequences();
  if (const std::int64_t rows = predicted / length - next; rows > 0) {
    pieces.push_back({next, rows, length});
    next += rows;
  }
  if (const std::int64_t rest = predicted % length; rest > 0) pieces.push_back({next, 1, rest});
  return pieces;
}

/// Warns of a rank that the others wait for.
class SlowRanks final : public Monitor {
 public:
  std::uint64_t begin(std::string_view, const Signature&) override { return 0; }
  void wait(std::uint64_t, double) override {}
  void end(std::uint64_t) override {}
  void slow(std::string_view sentence) override { say_warning(std::string(sentence)); }
};

/// Returns how many tokens are predicted, those of padding included; of pairs, whole rows.
std::int64_t predicted_tokens(const TokenSource& tokens, std::int64_t length, std::int64_t most) {
  const std::int64_t all =
      tokens.in_rows() ? tokens.size() / tokens.row() * length : tokens.size() - 1;
  if (most == 0 || most >= all) return all;
  return tokens.in_rows() ? std::max<std::int64_t>(1, most / length) * length : most;
}

Score score(const Decoder& model, const DevicePtr& device, const TokenSource& tokens,
            const Tokenizer* tokenizer, std::int64_t length, std::int64_t most,
            Communicator& ranks) {
  const std::int64_t predicted = predicted_tokens(tokens, length, most);
  Score result{.sequences = (predicted + length - 1) / length,
               .tokens = predicted,
               .last = predicted % length};
  const std::vector<Piece> pieces = pieces_of(predicted, length);
  std::vector<double> mine;
  std::int64_t bytes = 0, counted = 0;
  const std::int64_t stride = tokens.in_rows() ? tokens.row() : length;
  ProgressBar bar("evaluating", static_cast<double>(pieces.size()));
  // A rank that is slow may let the others wait long.
  keep_alive(ranks, "evaluation", [&] {
    for (auto i = static_cast<std::size_t>(ranks.rank()); i < pieces.size();
         i += static_cast<std::size_t>(ranks.size())) {
      const Piece& piece = pieces[i];
      Sequences sequences;
      for (std::int64_t row = piece.first; row < piece.first + piece.rows; ++row)
        append_sequence(tokens, row * stride, piece.length, sequences);
      mine.push_back(loss_of(model, device, sequences, piece.rows));
      counted += std::ranges::count_if(sequences.targets, [](auto id) { return id != no_target; });
      if (tokenizer != nullptr) bytes += bytes_of(*tokenizer, sequences.targets);
      bar.advance(ranks.size());
    }
  });
  const auto losses = gather_losses(ranks, mine, static_cast<std::int64_t>(pieces.size()),
                                    ranks.rank(), ranks.size(), true);
  // A whole batch has weight one: without other pieces the sum is bit for bit the mean that
  // validation computes.
  double sum = 0, weights = 0;
  const auto whole = static_cast<double>(pieces[0].rows * pieces[0].length);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const double weight = static_cast<double>(pieces[i].rows * pieces[i].length) / whole;
    sum += weight * losses[i];
    weights += weight;
  }
  result.loss = sum / weights;
  if (std::isnan(result.loss)) result.loss = std::abs(result.loss);  // is printed without a sign
  if (const auto bad = std::ranges::find_if_not(losses, [](double x) { return std::isfinite(x); });
      bad != losses.end()) {
    const Piece& piece = pieces[static_cast<std::size_t>(bad - losses.begin())];
    result.not_finite = piece.rows > 1 ? fmt::format("sequences {} to {}", piece.first,
                                                     piece.first + piece.rows - 1)
                                       : fmt::format("sequence {}", piece.first);
  }
  const auto sum_of = [&](std::int64_t value, std::string_view name) {
    const auto all = ranks.gather_values(value, name);
    return std::accumulate(all.begin(), all.end(), std::int64_t{0});
  };
  if (const std::int64_t all = sum_of(counted, "targets"); all < predicted) {
    result.loss *= static_cast<double>(predicted) / static_cast<double>(all);
    result.tokens = all;
  }
  const std::int64_t all_bytes = sum_of(bytes, "bytes");
  if (tokenizer != nullptr) result.bytes = all_bytes;
  return result;
}

/// A large loss has a perplexity of many digits, of which few mean something.
std::string spell_perplexity(double value) {
  return value < 1e7 ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value);
}

void print(const Options& o, const Score& s, std::int64_t length) {
  const bool text = s.bytes && *s.bytes > 0;
  if (o.json) {
    nlohmann::ordered_json all{{"loss", s.loss},           {"perplexity", std::exp(s.loss)},
                               {"bits_per_byte", nullptr}, {"tokens", s.tokens},
                               {"bytes", nullptr},         {"sequences", s.sequences},
                               {"seq_len", length}};
    if (text) all.update({{"bits_per_byte", s.bits_per_byte()}, {"bytes", *s.bytes}});
    return say(all.dump() + "\n");
  }
  say(fmt::format("loss         {:.6f} nats a token\n", s.loss));
  say(fmt::format("perplexity   {}\n", spell_perplexity(std::exp(s.loss))));
  if (text)
    say(fmt::format("bits/byte    {:.4f} ({} bytes of text)\n", s.bits_per_byte(), *s.bytes));
  say(fmt::format("tokens       {} predicted, in {} sequences of {}{}\n", s.tokens, s.sequences,
                  length,
                  s.last > 0 ? fmt::format(", of which the last has {}", s.last) : std::string()));
}

/// Returns the tokenizer. Text needs one; for tokens it only counts the bytes they stand for.
std::unique_ptr<Tokenizer> tokenizer_of(const Options& o, const ModelSource& source, bool needed) {
  if (!o.tokenizer_dir.empty()) return load_tokenizer(o.tokenizer_dir);
  return needed ? load_tokenizer(source) : find_tokenizer(source);
}

/// Refuses flags that would change nothing beside this data.
void require_effects(const Options& o, const DataInput& input) {
  const bool text = input.text.has_value();
  const std::string& name = input.files.name;
  refuse_without_effect(o.given,
                        text_rules(text, any_json_lines(input.files, o.text.format), name));
  refuse_without_effect(o.given, {{!text, "--special", "is for text, and " + name + " is tokens"}});
}

/// Returns the files that each rank reads.
std::vector<FilesOfFlag> input_files(const Options& o) {
  const auto find = [&] {
    return model_files_of("--model", find_model(o.model, o.adapter).folder).files;
  };
  return {data_files_of("--data", o.data), files_of("--model", find),
          model_files_of("--adapter", o.adapter),
          model_files_of("--tokenizer-dir", o.tokenizer_dir)};
}

/// Opens the device of this rank. Ranks that share a GPU divide what is free of its memory.
std::pair<DevicePtr, Precision> open_for_rank(const Options& o, Communicator& ranks) {
  const auto open = [&] {
    const DeviceKind kind = choose_device(o.device);
    const Precision precision = resolve_precision(o.precision, kind);
    return std::pair(open_device(kind, precision), precision);
  };
  if (ranks.size() == 1) {
    auto alone = open();
    alone.first->reserve(0);
    return alone;
  }
  const std::string host = this_process().host;
  const auto colour = static_cast<int>(crc32_of(std::as_bytes(std::span(host))) >> 1);
  const auto local = ranks.split(colour, ranks.rank(), {.name = "this host"});
  const auto sharers = static_cast<std::size_t>(take_gpu(*local).sharers);
  auto opened = open();
  local->barrier("devices")->wait();  // each has taken what the driver needs
  const std::size_t free = opened.first->runtime().capacity();
  local->barrier("memory")->wait();
  const bool gpu = opened.first->device().kind == DeviceKind::cuda;
  opened.first->reserve(gpu && sharers > 1 ? free / sharers : 0);
  return opened;
}

void run(const Options& o, const World& world) {
  cpu::set_threads(o.threads > 0 ? static_cast<int>(o.threads) : world.cores());
  const auto ranks = world.communicator(std::make_shared<SlowRanks>(), {});
  if (world.size() > 1) require_same_files(*ranks, input_files(o));
  const auto [device, precision] = open_for_rank(o, *ranks);
  const ModelSource source = find_model(o.model, o.adapter);
  const auto loaded = load_model(source, device, precision.dtype, ParameterSpace::Use::inference);
  const DecoderConfig& config = loaded.model->config();
  if (o.seq_len) require_length(config, *o.seq_len, fmt::format("--seq-len {}", *o.seq_len));
  const DataInput input(find_data("--data", o.data), o.text);
  require_streams_once(input.files, {}, world.size());
  const auto tokenizer = tokenizer_of(o, source, input.text.has_value());
  require_effects(o, input);
  if (tokenizer) require_special(*tokenizer, o.text.special);
  if (tokenizer)
    require_made_with(
        "--data", input.files, *tokenizer,
        o.tokenizer_dir.empty() ? "--model " + o.model : "--tokenizer-dir " + o.tokenizer_dir);
  std::vector<std::string> notes;
  const auto tokens =
      open_tokens("--data", input, o.text, tokenizer.get(), config.vocab_size,
                  {.given = o.seq_len, .most = config.longest_sequence(), .pack = o.pack}, notes);
  if (!tokens || tokens->size() < 2)
    fail(fmt::format("{} has {} tokens; a loss needs two", input.files.name,
                     tokens ? tokens->size() : 0),
         ErrorKind::usage);
  const std::int64_t length =
      tokens->in_rows() ? tokens->row() - 1 : o.seq_len.value_or(config.longest_sequence());
  for (const std::string& note : notes)
    if (!o.json) say(fmt::format("data         {}\n", note));
  const Score result =
      score(*loaded.model, device, *tokens, tokenizer.get(), length, o.max_tokens, *ranks);
  print(o, result, length);
  if (!result.not_finite.empty())
    fail(fmt::format("the loss is not finite, first that of {} of {} (counted from 0, {} tokens "
                     "each); compute in a wider --precision, or look for the place with probe",
                     result.not_finite, result.sequences, length),
         ErrorKind::numerical);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_ranks("evaluate", [&](const sluice::World& world) {
    sluice::Options options;
    sluice::CommandLine line("evaluate", "The loss of a model on data, on the same tokens always.");
    sluice::declare(line, options);
    const auto defaults = line.values();
    if (!line.parse(argc, argv)) return;
    options.given = sluice::given_flags(line, defaults);
    sluice::run(options, world);
  });
}
