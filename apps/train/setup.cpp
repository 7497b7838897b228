#include "apps/train/setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "apps/checkpoint/model_folder.h"
#include "apps/config/rules.h"
#include "apps/data/encode_text.h"
#include "apps/output/output_file.h"
#include "apps/trace/trace_file.h"
#include "apps/train/adapters.h"
#include "engine/io/json_document.h"
#include "engine/nearest_names.h"
#include "models/decoder/config_json/config_file.h"
#include "models/decoder/shard.h"
#include "models/text/byte_tokenizer.h"
#include "models/text/char_tokenizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// True for a configuration without weights.
bool is_shape_file(const std::string& name) {
  return name.ends_with(".json") && fs::is_regular_file(name);
}

void resolve_model(const TrainConfig& o, RunSetup& setup) {
  const ModelConfig& model = o.model;
  DecoderConfig& config = setup.config;
  if (model.name.empty()) {
    config.n_layer = model.n_layer;
    config.n_head = model.n_head;
    config.n_embd = model.n_embd;
    config.n_positions = model.context.value_or(128);
    config.vocab_size = 0;  // set below from the tokenizer
  } else if (const auto known = preset(model.name)) {
    config = *known;
    config.n_positions = model.context.value_or(config.n_positions);
  } else if (is_shape_file(model.name)) {
    config = read_config(model.name);
    shorten_context(config, model.context);
  } else if (fs::is_directory(model.name) || is_gguf_name(model.name)) {
    require_model_folder(model.name);
    setup.model_folder = model.name;
    config = read_config(setup.model_folder / "config.json");
    shorten_context(config, model.context);
  } else {
    const auto all = preset_names();
    const auto near = nearest_names(model.name, {all.begin(), all.end()}, 3);
    fail(fmt::format("--model '{}' is neither a folder nor a config.json or published shape for "
                     "random weights; the nearest are {} (--help lists all)",
                     excerpt(model.name), fmt::join(near, ", ")),
         ErrorKind::usage);
  }
  resolve_adapters(o, config);
  setup.trainer.dropout = dropout_of(model, config);
}

/// Returns the tokenizer from the first of these sources: --tokenizer-dir, the model's folder, the
/// folder of prepared data, the requested kind.
std::unique_ptr<Tokenizer> resolve_tokenizer(const TrainConfig& o, const RunSetup& setup,
                                             const DataInput& data) {
  const auto require_kind = [&](std::unique_ptr<Tokenizer> tokenizer, const fs::path& from) {
    if (o.data.tokenizer && tokenizer->kind() != name_in(tokenizers, *o.data.tokenizer))
      fail(
          fmt::format("{} holds a tokenizer of kind {}, --tokenizer asks for {}; leave --tokenizer "
                      "out to take that of the folder",
                      from.string(), tokenizer->kind(), name_in(tokenizers, *o.data.tokenizer)),
          ErrorKind::usage);
    return tokenizer;
  };
  if (!o.data.tokenizer_dir.empty())
    return require_kind(load_tokenizer(o.data.tokenizer_dir), o.data.tokenizer_dir);
  if (!setup.model_folder.empty() && has_tokenizer(setup.model_folder)) {
    auto found = data.text || o.data.tokenizer ? load_tokenizer(setup.model_folder)
                                               : find_tokenizer(setup.model_folder);
    if (found == nullptr) return nullptr;
    return require_kind(std::move(found), setup.model_folder);
  }
  if (const fs::path& folder = data.files.folder; !folder.empty() && has_tokenizer(folder))
    return require_kind(load_tokenizer(folder), folder);
  if (!data.text) return nullptr;
  const bool known = preset(o.model.name) || is_shape_file(o.model.name);
  if (!o.data.tokenizer && known && setup.config.family != Family::gpt2)
    fail(fmt::format("--model {} with random weights needs --tokenizer-dir with a tokenizer.json; "
                     "--tokenizer bytes works without files",
                     o.model.name),
         ErrorKind::usage);
  if (o.data.tokenizer == TokenizerKind::bpe)
    fail(
        "the bpe tokenizer needs --tokenizer-dir with a tokenizer.json; --tokenizer bytes works "
        "without files",
        ErrorKind::usage);
  if (o.data.tokenizer == TokenizerKind::gpt2 || (!o.data.tokenizer && known))
    fail(fmt::format("the gpt2 tokenizer needs --tokenizer-dir with vocab.json and merges.txt (or "
                     "encoder.json and vocab.bpe); --tokenizer bytes works without files{}",
                     !o.model.name.empty() && fs::is_directory(o.model.name)
                         ? fmt::format("; --model {0} is a shape with random weights, and the "
                                       "folder here is --model {0}/",
                                       o.model.name)
                         : ""),
         ErrorKind::usage);
  if (o.data.tokenizer == TokenizerKind::chars)
    return std::make_unique<CharTokenizer>(characters_of(*data.text));
  return std::make_unique<ByteTokenizer>();
}

/// Returns the flag that decided where the tokenizer is from.
std::string origin_of_tokenizer(const TrainConfig& o, const RunSetup& setup, const fs::path& data) {
  if (!o.data.tokenizer_dir.empty()) return "--tokenizer-dir " + o.data.tokenizer_dir;
  if (!setup.model_folder.empty() && has_tokenizer(setup.model_folder))
    return "--model " + o.model.name;
  return data.empty() ? "this run" : "--data " + data.string();
}

void resolve_vocabulary(const TrainConfig& o, RunSetup& setup) {
  DecoderConfig& config = setup.config;
  if (o.model.name.empty())
    config.vocab_size =
        o.model.vocab_size.value_or(setup.tokenizer ? setup.tokenizer->vocab_size() : 50257);
  else if (o.model.vocab_size && *o.model.vocab_size != config.vocab_size)
    fail(fmt::format("--vocab-size {} contradicts --model {}, which has {}", *o.model.vocab_size,
                     o.model.name, config.vocab_size),
         ErrorKind::usage);
  if (setup.tokenizer && setup.tokenizer->vocab_size() > config.vocab_size)
    fail(fmt::format("the {} tokenizer has {} tokens, the model only {}; raise --vocab-size or "
                     "choose another --tokenizer",
                     setup.tokenizer->kind(), setup.tokenizer->vocab_size(), config.vocab_size),
         ErrorKind::usage);
  validate(config);
}

void resolve_batch(const TrainConfig& o, RunSetup& setup) {
  auto& trainer = setup.trainer;
  trainer.batch_size = o.batch.size;
  const auto& train = setup.data.train;
  trainer.seq_len = o.batch.seq_len.value_or(
      train && train->in_rows() ? train->row() - 1 : setup.config.longest_sequence());
  require_length(setup.config, trainer.seq_len, fmt::format("--seq-len {}", trainer.seq_len));
  const std::int64_t dp = o.parallel.dp.value_or(1), share = o.batch.size / dp;
  if (o.batch.size % dp != 0)
    fail(fmt::format("--batch-size {} is not divisible by --dp {}: {} * {} = {}; every rank has as "
                     "many sequences as the others, so give a multiple of {}",
                     o.batch.size, dp, share, dp, share * dp, dp),
         ErrorKind::usage);
  if (o.batch.micro_batch) {
    const std::int64_t rows = *o.batch.micro_batch;
    if (share % rows != 0)
      fail(fmt::format(
               "{} is not divisible by --micro-batch {}: {} * {} = {}; give a divisor, or auto",
               dp > 1 ? fmt::format("--batch-size {} / --dp {} = {}", o.batch.size, dp, share)
                      : fmt::format("--batch-size {}", share),
               rows, share / rows, rows, share / rows * rows),
           ErrorKind::usage);
    trainer.micro_batch = rows;
  } else {
    // These tokens are meant to suffice for full-speed matrix products while activations stay
    // small.
    constexpr std::int64_t enough_tokens = 8192;
    std::int64_t rows = share;
    // A pipeline of 4 x pp micro-batches is busy for four fifths of the time.
    const std::int64_t most =
        o.parallel.pipelined() ? std::max<std::int64_t>(1, share / (4 * o.parallel.pp)) : share;
    const auto divides = [&] {
      return share % rows == 0 && divides_tokens(o, rows, trainer.seq_len);
    };
    while (rows > 1 && (rows > most || rows * trainer.seq_len > enough_tokens || !divides()))
      --rows;
    while (rows < share && !divides())
      ++rows;
    trainer.micro_batch = rows;
  }
  if (!divides_tokens(o, trainer.micro_batch, trainer.seq_len))
    fail(fmt::format("--sequence-parallel: {} of {} x {} = {} tokens does not divide by --tp {}",
                     o.batch.micro_batch ? "a micro-batch" : "a batch", trainer.micro_batch,
                     trainer.seq_len, trainer.micro_batch * trainer.seq_len, o.parallel.tp),
         ErrorKind::usage);
  trainer.grad_clip = o.optimizer.grad_clip;
  trainer.graphs = o.machine.cuda_graph;
  trainer.seed = o.seed;
  trainer.loss_scaling = setup.precision.loss_scaling;
  trainer.spikes = {.loss = o.guard.spike, .gradient_norm = o.guard.spike};
}

/// Refuses data with too little text for one batch or for one validation sequence.
void require_data(const TrainConfig& o, RunSetup& setup) {
  const auto& trainer = setup.trainer;
  const std::int64_t needed = o.batch.size * trainer.seq_len + 1;
  const TokenSource& train = *setup.data.train;
  if (train.in_rows() && train.size() < o.batch.size * train.row())
    fail(fmt::format("{} has {} {}; give more pairs, or a --batch-size of so many at most",
                     setup.data_name, train.size() / train.row(),
                     o.data.pack ? "sequences" : "pairs"),
         ErrorKind::usage);
  if (!train.in_rows() && train.size() < needed)
    fail(fmt::format("{} has {} training tokens; one batch of {} x {} needs {}; use more text, a "
                     "smaller --batch-size or a shorter --seq-len",
                     setup.data_name, train.size(), o.batch.size, trainer.seq_len, needed),
         ErrorKind::usage);
  if (setup.data.val && setup.data.val->size() < trainer.seq_len + 1) {
    if (!o.data.val.empty())
      fail(fmt::format("{} has {} tokens; validation needs at least {}", o.data.val.front(),
                       setup.data.val->size(), trainer.seq_len + 1),
           ErrorKind::usage);
    setup.data.val = nullptr;
  }
}

void resolve_pipeline(const TrainConfig& o, RunSetup& setup) {
  setup.pipeline = plan_pipeline(o, setup.config, setup.trainer.micro_batch, setup.device);
  if (!setup.pipeline || !setup.pipeline->max_stashed || setup.device != DeviceKind::cpu) return;
  const PipelinePlan& plan = *setup.pipeline;
  const std::size_t each = message_bytes(setup, setup.trainer.micro_batch);
  for (std::size_t stage = 1; stage < plan.parts.size(); ++stage) {
    const int rank = plan.rank_of_stage[stage];
    const int inputs = plan.inputs[static_cast<std::size_t>(rank)];
    if (static_cast<std::size_t>(inputs) * each <= *plan.max_stashed) continue;
    fail(fmt::format("--stash {}: rank {} keeps the inputs of up to {} micro-batches of {} bytes, "
                     "{} in all, and on the CPU they have nowhere else to rest; use another "
                     "--pipeline or a smaller --micro-batch",
                     stash_text(o.parallel), rank, inputs, each,
                     static_cast<std::size_t>(inputs) * each),
         ErrorKind::usage);
  }
}

void resolve_schedule(const TrainConfig& o, RunSetup& setup) {
  const double usual = setup.config.lora.rank > 0    ? 2e-4
                       : !setup.model_folder.empty() ? 5e-5
                       : o.model.name.empty()        ? 1e-3
                                                     : 3e-4;
  RateSchedule& schedule = setup.schedule;
  schedule.kind = o.optimizer.schedule;
  schedule.rate = o.optimizer.lr.value_or(usual);
  schedule.final_rate = o.optimizer.min_lr.value_or(schedule.rate / 10);
  schedule.warmup = o.optimizer.warmup_steps;
  schedule.updates = o.batch.steps;
}

}  // namespace

SequenceSampler sampler_of(const TrainConfig& o, const RunSetup& setup) {
  const TokenSource& train = *setup.data.train;
  return {o.data.order, o.seed, train.size(), o.batch.size, setup.trainer.seq_len, train.row()};
}

EvaluationBatches validation_batches(const TrainConfig& o, const RunSetup& setup) {
  return {*setup.data.val, o.evaluation.val_steps * o.batch.size, setup.trainer.seq_len};
}

bool divides_tokens(const TrainConfig& o, std::int64_t rows, std::int64_t seq_len) {
  return !o.parallel.sequence_parallel || rows * seq_len % o.parallel.tp == 0;
}

void resolve_memory(const TrainConfig& o, RunSetup& setup) {
  require_rules({o}, Known::options);
  if (o.parallel.tp > 1) require_divisible(setup.config, static_cast<int>(o.parallel.tp));
  resolve_batch(o, setup);
  resolve_pipeline(o, setup);
}

namespace {

/// Takes the kernel of --attention if `has` it: the device, or one that is not present.
void resolve_attention(const TrainConfig& o, RunSetup& setup, bool has,
                       const std::string& device_name) {
  if (o.machine.attention == AttentionKernel::mma) return;
  const std::int64_t width = setup.config.width_of_head();
  const auto refuse = [](const std::string& reason) {
    fail(fmt::format("--attention tma {}; leave it out", reason), ErrorKind::usage);
  };
  if (!has)
    refuse(
        fmt::format("needs a GPU of compute capability 9.0 and a program compiled for it, and "
                    "this is {}",
                    device_name));
  if (size_of(setup.precision.dtype) != 2)
    refuse(fmt::format("is for bf16 and fp16, and the precision is {}", name_of(setup.precision)));
  if (const double dropout = setup.trainer.dropout.attention; dropout > 0)
    refuse(fmt::format("has no dropout, and attention's is {} (--dropout)", dropout));
  if (width % 8 != 0 || width > 128)
    refuse(fmt::format("is for heads of 8, 16 and so on to 128, and they are {} wide", width));
  setup.precision.wgmma_attention = true;
}

/// Refuses a trace file that the run reads as data.
void require_trace_apart(const TrainConfig& o, const DataFiles& data, const DataFiles& val) {
  for (const DataFiles* const files : {&data, &val}) {
    std::vector<fs::path> inputs = files->tokens;
    inputs.insert(inputs.end(), files->val_tokens.begin(), files->val_tokens.end());
    for (const TextFile& text : files->texts)
      inputs.push_back(text.path);
    require_not_input("--trace", o.log.trace, inputs);
  }
}

}  // namespace

RunSetup resolve(const TrainConfig& o) {
  require_rules({o}, Known::options);
  RunSetup setup;
  setup.device = choose_device(o.machine.device);
  setup.precision = resolve_precision(o.machine.precision, setup.device);
  const auto names = o.data.train.empty() ? std::vector{shipped_text()} : o.data.train;
  DataFiles files = find_data("--data", names);
  DataFiles val_files = o.data.val.empty() ? DataFiles() : find_data("--val-data", o.data.val);
  if (!o.log.trace.empty()) require_trace_apart(o, files, val_files);
  resolve_model(o, setup);
  check_model_weights(setup);
  require_streams_once(files, val_files, o.parallel.mesh().size());
  setup.data_name = files.name;
  const DataInput data(std::move(files), o.data.text);
  const DataInput val(std::move(val_files), o.data.text);
  setup.tokenizer = resolve_tokenizer(o, setup, data);
  if (setup.tokenizer) {
    const std::string whose = origin_of_tokenizer(o, setup, data.files.folder);
    require_made_with("--data", data.files, *setup.tokenizer, whose);
    require_made_with("--val-data", val.files, *setup.tokenizer, whose);
  }
  setup.can_sample = setup.tokenizer != nullptr;
  resolve_vocabulary(o, setup);
  if (o.machine.attention != AttentionKernel::mma) {
    const bool gpu = setup.device == DeviceKind::cuda;
    const DeviceInfo info =
        gpu ? make_runtime(setup.device)->info() : DeviceInfo{.name = "the CPU"};
    resolve_attention(o, setup, info.wgmma_attention, info.name);
  }
  setup.data = open_dataset(
      data, o.data.val.empty() ? nullptr : &val, o.data.text, setup.tokenizer.get(),
      setup.config.vocab_size,
      {.given = o.batch.seq_len, .most = setup.config.longest_sequence(), .pack = o.data.pack});
  if (o.parallel.tp > 1) require_divisible(setup.config, static_cast<int>(o.parallel.tp));
  resolve_batch(o, setup);
  require_data(o, setup);
  resolve_pipeline(o, setup);
  resolve_schedule(o, setup);
  return setup;
}

std::size_t message_bytes(const RunSetup& setup, std::int64_t micro_batch) {
  return static_cast<std::size_t>(micro_batch * setup.trainer.seq_len * setup.config.n_embd) *
         size_of(setup.precision.dtype);
}

bool knows_shape(const TrainConfig& o) {
  return !o.model.name.empty() || o.model.vocab_size;
}

RunSetup resolve_shape(const TrainConfig& o, bool gpu, int capability,
                       const std::string& device_name) {
  RunSetup setup;
  setup.device = gpu ? DeviceKind::cuda : DeviceKind::cpu;
  setup.precision = resolve_precision(o.machine.precision, gpu, capability, device_name);
  resolve_model(o, setup);
  resolve_vocabulary(o, setup);
  resolve_attention(o, setup, capability == 90, device_name);
  resolve_memory(o, setup);
  resolve_schedule(o, setup);
  return setup;
}

}  // namespace sluice
