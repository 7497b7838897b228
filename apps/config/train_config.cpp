#include "apps/config/train_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "apps/cli/parse/number_checks.h"
#include "apps/output/output_file.h"
#include "apps/output/run_folder.h"
#include "apps/trace/trace_file.h"
#include "engine/io/json_document.h"
#include "models/decoder/config.h"

namespace sluice {

DropoutConfig dropout_of(const ModelConfig& model, const DecoderConfig& config) {
  if (!model.dropout) return config.dropout;
  return {.embedding = *model.dropout, .attention = *model.dropout, .residual = *model.dropout};
}

namespace {

PipelineSchedule parse_pipeline(const std::string& text) {
  const auto known = std::ranges::find(pipelines, text, &Choice<ScheduleName>::name);
  if (known != pipelines.end()) return {.name = known->value};
  constexpr std::string_view interleaved = "interleaved*";
  if (!text.starts_with(interleaved)) return {.file = text};
  constexpr std::int64_t most = 1024;
  const auto each = whole_number(text.substr(interleaved.size()), 1, most);
  if (!each)
    fail(fmt::format("--pipeline '{}': after interleaved* stands the number of stages on each "
                     "rank, from 1 to {}",
                     excerpt(text), most),
         ErrorKind::usage);
  return {.name = ScheduleName::interleaved, .virtual_stages = *each};
}

void declare_pipeline(CommandLine& line, TrainConfig& o) {
  line.add_parsed(
      "--pipeline",
      "gpipe, 1f1b (default), interleaved*2 (stages on each rank), layer-major, layer-split, "
      "zb-h1, or a CSV file with a row for each rank",
      [&o](const std::string& text) {
        o.parallel.pipeline.reset();
        if (!text.empty()) o.parallel.pipeline = parse_pipeline(text);
      },
      [&o] { return o.parallel.pipeline ? to_string(*o.parallel.pipeline) : ""; });
}

void declare_optimizer(CommandLine& line, OptimizerConfig& o) {
  const std::string with_rms = "muon-rms";
  std::vector<std::string> names = names_of(optimizers);
  names.insert(std::ranges::find(names, "muon") + 1, with_rms);
  line.add_word(
      "--optimizer",
      "Update rule; adamw8bit: adamw with --state-layout int8; muon-rms: muon with steps as large "
      "as AdamW's",
      names,
      [&o, with_rms](const std::string& name) {
        const bool rms = name == with_rms;
        o.kind = rms ? OptimizerKind::muon : value_in(optimizers, name);
        o.muon_scale = rms ? MuonScale::rms : MuonScale::shape;
      },
      [&o, with_rms] {
        const bool rms = o.kind == OptimizerKind::muon && o.muon_scale == MuonScale::rms;
        return rms ? with_rms : std::string(name_in(optimizers, o.kind));
      });
}

void declare_stream(CommandLine& line, MemoryConfig& o) {
  static constexpr std::int64_t most = std::int64_t{1} << 30, most_at_a_time = 64;
  line.add_parsed(
      "--stream-chunks",
      "Parameters that stream at a time, and how many such chunks may be on their way; default "
      "4194304*4, less where memory is short",
      [&o](const std::string& text) {
        const auto star = std::min(text.find('*'), text.size());
        o.stream_chunk = whole_number(text.substr(0, star), 1, most);
        o.staging_chunks.reset();
        if (star < text.size())
          o.staging_chunks = whole_number(text.substr(star + 1), 1, most_at_a_time);
        if (!o.stream_chunk || (star < text.size() && !o.staging_chunks))
          fail(fmt::format("--stream-chunks '{}' is no number of parameters, up to {}, as 4194304, "
                           "nor one with that of chunks, up to {}, as 4194304*2",
                           excerpt(text), most, most_at_a_time),
               ErrorKind::usage);
      },
      [&o] {
        if (!o.stream_chunk) return std::string();
        return o.staging_chunks ? fmt::format("{}*{}", *o.stream_chunk, *o.staging_chunks)
                                : std::to_string(*o.stream_chunk);
      });
}

void declare_stash(CommandLine& line, ParallelConfig& o) {
  line.add_parsed(
      "--stash",
      "What a stage keeps of a micro-batch: all that backward needs (graph), its input alone "
      "(input), or inputs of which a rank has at most so much on its GPU and the rest in host "
      "memory (input:1GiB); auto: graph, for layer-major input:0",
      [&o](const std::string& text) {
        o.stash.reset();
        o.max_stash.reset();
        if (text == "auto") return;
        const auto colon = std::min(text.find(':'), text.size());
        const std::string kind = text.substr(0, colon);
        const bool limited = kind == "input" && colon < text.size();
        if ((kind != "graph" && kind != "input") || (colon < text.size() && !limited))
          fail(fmt::format("--stash '{}' is not one of auto, graph, input and input:1GiB",
                           excerpt(text)),
               ErrorKind::usage);
        o.stash = value_in(stashes, kind);
        if (limited) o.max_stash = parse_bytes("--stash input:", text.substr(colon + 1), 0);
      },
      [&o] { return stash_text(o); }, "auto");
}

void declare_resume(CommandLine& line, TrainConfig& o) {
  using From = ResumeOption::From;
  line.add_parsed(
      "--resume",
      "auto (newest checkpoint of --output), never, a run's folder (its newest), or a checkpoint",
      [&o](const std::string& text) {
        o.checkpoint.resume = text == "auto"    ? ResumeOption()
                              : text == "never" ? ResumeOption{.from = From::nothing}
                                                : ResumeOption{.from = From::path, .path = text};
      },
      [&o] {
        return o.checkpoint.resume.from == From::nothing ? "never" : o.checkpoint.resume.path;
      },
      "auto");
}

}  // namespace

void declare_config(CommandLine& line, TrainConfig& o) {
  using Role = CommandLine::Role;
  const double infinity = std::numeric_limits<double>::max();
  line.group("Model");
  line.add(
      "--model", o.model.name,
      fmt::format("A Hugging Face folder; or, for random weights, a config.json (shape.json) or "
                  "a published shape: {}",
                  fmt::join(preset_names(), ", ")));
  line.add("--n-layer", o.model.n_layer, "Blocks of a shape of your own", 1);
  line.add("--n-head", o.model.n_head, "Attention heads", 1);
  line.add("--n-embd", o.model.n_embd, "Width; a multiple of --n-head", 1);
  line.add("--vocab-size", o.model.vocab_size, "Vocabulary; default: the tokenizer's", 1);
  line.add("--context", o.model.context, "Longest sequence; crops that of a loaded model", 1);

  line.group("Data");
  line.add(
      "--data", o.data.train,
      "Text files, .jsonl, .gz of them, folders, patterns, - for standard input; .bin of token "
      "ids or prepare_data's folder");
  line.add("--val-data", o.data.val, "The same, for validation; default: a tenth of the text");
  line.add_choice("--tokenizer", o.data.tokenizer, "How text becomes tokens", tokenizers);
  line.add("--tokenizer-dir", o.data.tokenizer_dir,
           "Folder with tokenizer.json, or vocab.json + merges.txt");
  line.add(
      "--pack", o.data.pack,
      "Puts as many pairs (prepare_data --pairs) into each sequence as fit, by default of 1024 "
      "tokens; attention and positions stay within a pair");

  line.group("Batch and length");
  line.add("--batch-size", o.batch.size, "Sequences per update", 1, 1 << 24);
  line.role(Role::memory);
  line.add_or_auto("--micro-batch", o.batch.micro_batch,
                   "Sequences computed at a time, or auto: what suits", 1);
  line.role(Role::training);
  line.add("--seq-len", o.batch.seq_len,
           "Tokens per sequence; default: the context, or what pairs need", 1);
  line.add("--steps", o.batch.steps, "Updates", 0, std::int64_t{1} << 40);

  line.group("Optimizer");
  declare_optimizer(line, o.optimizer);
  line.add("--lr", o.optimizer.lr,
           "Learning rate; default 1e-3, 3e-4 for a published shape, 5e-5 for a folder, 2e-4 for "
           "adapters",
           0, infinity);
  line.add("--muon-lr", o.optimizer.muon_lr,
           "Rate of the matrices that Muon updates; default 0.02, for muon-rms that of --lr", 0,
           infinity);
  line.add("--muon-momentum", o.optimizer.muon_momentum, "Muon's momentum; default 0.95", 0,
           0.9999999);
  line.add("--min-lr", o.optimizer.min_lr,
           "Rate at the end of the schedule; default a tenth of --lr", 0, infinity);
  line.add("--warmup-steps", o.optimizer.warmup_steps, "Updates until the rate is full");
  line.add_choice("--lr-schedule", o.optimizer.schedule, "Shape of the rate after warm-up",
                  rate_schedules);
  // A beta of 1 would make the bias correction divide by zero.
  line.add("--beta1", o.optimizer.beta1, "AdamW's first decay; SGD's momentum", 0, 0.9999999);
  line.add("--beta2", o.optimizer.beta2, "AdamW's second decay", 0, 0.9999999);
  line.add("--eps", o.optimizer.eps, "AdamW's epsilon, outside the root", 0, 1);
  line.add("--weight-decay", o.optimizer.weight_decay,
           "Decoupled; on tensors of two or more dimensions", 0, infinity);
  line.add("--grad-clip", o.optimizer.grad_clip, "Bound on the global gradient norm; 0: none", 0,
           infinity);
  line.add("--dropout", o.model.dropout,
           "Probability, everywhere that GPT-2 has it; default: the model's config.json, or 0", 0,
           0.999);

  line.group("Adapters");
  line.add("--lora-rank", o.adapter.rank,
           "Train low-rank adapters of this rank (LoRA) and leave the model's weights as they are",
           1);
  line.add("--lora-alpha", o.adapter.alpha,
           "What adapters compute is multiplied by this over the rank; default: twice the rank", 0,
           infinity);
  line.add("--lora-targets", o.adapter.targets,
           "Matrices that get one: attention, mlp, all (the default), or ends of names between "
           "commas: q_proj,v_proj");
  line.add("--lora-dropout", o.adapter.dropout, "Probability for what adapters read; default 0", 0,
           0.999);
  line.add("--adapter", o.adapter.folder,
           "Train on from the adapters of this folder, in PEFT's form");
  line.add("--int8-base", o.adapter.int8_base,
           "Keep the matrices of the model's blocks in 8 bits while adapters are trained");

  line.group("Machine");
  line.add_choice("--precision", o.machine.precision,
                  "Arithmetic; master weights stay fp32. auto: fp32 on the CPU, 16 bits on a GPU",
                  precisions);
  line.add_choice("--device", o.machine.device, "Where to compute", devices);
  line.add(
      "--cuda-graph", o.machine.cuda_graph,
      "Give a GPU whole passes instead of kernels one by one; for one rank without dropout, with "
      "all state on the GPU");
  line.add("--threads", o.machine.threads, "CPU threads; 0: all cores", 0, 4096);

  line.group("Memory");
  line.add_size("--gpu-memory", o.memory.gpu,
                "Budget, such as 11GiB or 11G; default: what the GPU has free");
  line.add_size("--host-memory", o.memory.host,
                "Budget for the whole process, such as 16GiB; default: what the machine has");
  line.add("--state-home", o.memory.state_home,
           "Folder on a disk, for the optimizer state that leaves the GPU's memory or, on the CPU, "
           "does not fit into --host-memory; it rests in an unnamed file there, and the CPU "
           "updates it");
  line.add("--head-chunk", o.memory.head_chunk,
           "Tokens whose logits exist at a time; default: 1024, on a GPU up to 8192 if they fit", 1,
           std::int64_t{1} << 30);
  line.role(Role::memory);
  line.add_parsed(
      "--placement",
      "Where each block's weights, gradients and optimizer state are, and what it recomputes: "
      "auto, or for instance resident:gelu*20,offload-optimizer:gelu",
      [&o](const std::string& text) { o.memory.placement = text == "auto" ? "" : text; },
      [&o] { return o.memory.placement.empty() ? "auto" : o.memory.placement; }, "auto");
  line.add_choice("--state-layout", o.memory.state_layout,
                  "How master weights and moments are stored", state_layouts);
  line.add_choice("--gradients", o.memory.gradients,
                  "Dtype in which matrices' gradients are summed", gradient_types);
  line.role(Role::ranks);
  line.group("Ranks (of scripts/launch, mpirun or srun)");
  line.add("--dp", o.parallel.dp,
           "Replicas of the model that share each batch; default: all that --pp and --tp leave", 1);
  line.add("--pp", o.parallel.pp, "Ranks among which each replica's blocks are divided (pipeline)",
           1, 4096);
  line.add("--tp", o.parallel.tp,
           "Ranks that divide the matrices of each stage (tensor parallelism)", 1, 1024);
  line.add("--sequence-parallel", o.parallel.sequence_parallel,
           "The ranks of --tp divide the tokens too, where they would all hold the same");
  declare_pipeline(line, o);
  line.add(
      "--pipeline-split", o.parallel.split,
      "Evenly by blocks, by parameters or by measured time, or the blocks of each stage: 3,4,4,1");
  declare_stash(line, o.parallel);
  line.add("--zero", o.parallel.zero,
           "Each replica keeps a part of the optimizer state (1), and of the gradients (2)", 0, 2);
  line.role(Role::training);
  line.add("--collective-timeout", o.parallel.collective_timeout,
           "Seconds after which an operation that some rank does not join ends the job", 1, 1e6);
  line.add_output("--rank-files", o.parallel.rank_files,
                  "Folder for what each rank was doing; default: a temporary one",
                  [](const std::string& folder) { require_folder_name("--rank-files", folder); });

  line.group("Run");
  line.add_output("--output", o.checkpoint.output, "Folder of the run; default runs/<time>",
                  require_run_or_new);
  add_trace(line, o.log.trace, "Write when what ran on the device to this file, for Perfetto");
  line.add_or_auto(
      "--save-every", o.checkpoint.save_every,
      "Checkpoint every so many steps, or so often: 500, 10min; 0: only at the end; auto: every "
      "5min, or more rarely where saving takes long");
  line.add_choice("--save", o.checkpoint.saving,
                  "Whether training waits for a checkpoint to be written, or goes on while a copy "
                  "in host memory is written; never: nothing is saved or exported at the end",
                  savings);
  line.add("--keep", o.checkpoint.keep,
           "Checkpoints kept; default: as the run that goes on, else 2", 1);
  declare_resume(line, o);
  line.add("--val-every", o.evaluation.val_every,
           "Validate every this many steps; 0: only at the end");
  line.add("--val-steps", o.evaluation.val_steps,
           "Batches of --batch-size sequences per validation, from the beginning of the data", 1,
           std::int64_t{1} << 30);
  line.add("--keep-best", o.checkpoint.keep_best,
           "Keep the model with the lowest validation loss in OUTPUT/best");
  line.add("--sample-every", o.evaluation.sample_every,
           "Sample every this many steps; 0: only at the end");
  line.add("--sample-tokens", o.evaluation.sample_tokens, "Tokens of a sample; 0: no samples");
  line.add_text("--prompt", o.evaluation.prompt, "Text that samples continue");
  line.add("--log-every", o.log.every,
           "Print a line every this many steps; default: about 50 lines, on a terminal one line "
           "that is drawn over. log.jsonl has every step",
           1);
  line.add("--peak-tflops", o.log.peak_tflops,
           "TFLOP/s of one rank of which MFU is the share, as in a data sheet; default: those of a "
           "matrix product, measured at the start. It changes no plan",
           1e-6, 1e6);
  line.add("--quiet", o.log.quiet, "Print errors, warnings and how the run ended alone");
  line.add("--verbose", o.log.verbose, "Print every step, and what its time went to");
  line.add("--seed", o.seed, "Of weights, data order, dropout and samples");
  line.add("--max-bad-steps", o.guard.max_bad_steps,
           "Stop (exit code 3) after this many skipped updates in a row", 1);
  line.add("--skip-spikes", o.guard.spike,
           "Skip updates whose loss or gradient norm is this many standard deviations above the "
           "mean; 0: none",
           0, infinity);
  line.add("--skip-batches", o.data.skip_batches,
           "With --resume: leave out this many batches of the data; each resume leaves out more", 0,
           std::int64_t{1} << 40);
  line.allow_config_file();

  // Tests of promises need these, and few users.
  line.group("For testing");
  line.add_choice("--data-order", o.data.order, "Order of the training sequences", data_orders);
  line.add_choice(
      "--attention", o.machine.attention,
      "A GPU's attention kernel in 16 bits; tma (with wgmma, on an H100 or H200, without "
      "dropout) computes the forward pass up to 9 % faster",
      attention_kernels);
  line.add_size("--bucket-size", o.parallel.bucket_size,
                "Gradients that are reduced at a time; default 4MiB, between GPUs 25MiB",
                std::size_t{4} << 10);
  line.add_choice("--communication", o.parallel.communication,
                  "How GPUs exchange; auto: NCCL where each rank has one of its own",
                  communications);
  line.add("--overlap", o.parallel.overlap, "Reduce gradients while the rest of backward runs");
  line.add("--checked", o.parallel.checked,
           "Compare the ranks' operations with each other, one by one");
  line.add(
      "--inject", o.parallel.inject,
      "Make a fault, to try the reports: rank=1,op=42,kind=stop|exit|kill|abort|segfault|throw|"
      "memory|skip|mismatch|count|type|slow");
  line.role(Role::memory);
  declare_stream(line, o.memory);
}

}  // namespace sluice
