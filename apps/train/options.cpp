#include "apps/train/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "apps/output/output_file.h"
#include "apps/output/run_folder.h"
#include "apps/trace/trace_file.h"
#include "models/decoder/config.h"

namespace sluice {

std::size_t bucket_bytes(const TrainOptions& o, bool gpu) {
  return o.bucket_size.value_or(std::size_t{gpu ? 25u : 4u} << 20);
}

TrainOptions without_parallelism(TrainOptions options) {
  const TrainOptions usual;
  options.dp = options.pp = options.tp = 1;
  options.zero = 0;
  options.pipeline = usual.pipeline;
  options.virtual_stages = usual.virtual_stages;
  options.pipeline_split = usual.pipeline_split;
  options.stash = usual.stash;
  options.max_stash = usual.max_stash;
  options.sequence_parallel = usual.sequence_parallel;
  return options;
}

namespace {

void declare_pipeline(CommandLine& line, TrainOptions& o) {
  line.add_parsed(
      "--pipeline",
      "gpipe, 1f1b (default), interleaved, layer-major, layer-split, zb-h1, or a CSV file with a "
      "row for each rank",
      [&o](const std::string& text) {
        const auto known = std::ranges::find(pipelines, text, &Choice<ScheduleName>::name);
        o.pipeline.reset();
        if (known != pipelines.end())
          o.pipeline = {.schedule = known->value};
        else if (!text.empty())
          o.pipeline = {.file = text};
      },
      [&o] { return o.pipeline ? o.pipeline->text() : ""; });
}

void declare_resume(CommandLine& line, TrainOptions& o) {
  using From = ResumeOption::From;
  line.add_parsed(
      "--resume",
      "auto (newest checkpoint of --output), never, a run's folder (its newest), or a checkpoint",
      [&o](const std::string& text) {
        o.resume = text == "auto"    ? ResumeOption()
                   : text == "never" ? ResumeOption{.from = From::nothing}
                                     : ResumeOption{.from = From::path, .path = text};
      },
      [&o] { return o.resume.from == From::nothing ? "never" : o.resume.path; }, "auto");
}

}  // namespace

void declare_options(CommandLine& line, TrainOptions& o) {
  const double infinity = std::numeric_limits<double>::max();
  line.group("Model");
  line.add("--model", o.model,
           fmt::format("A Hugging Face folder, or a published shape with random weights: {}",
                       fmt::join(preset_names(), ", ")));
  line.add("--n-layer", o.n_layer, "Blocks of a shape of your own", 1);
  line.add("--n-head", o.n_head, "Attention heads", 1);
  line.add("--n-embd", o.n_embd, "Width; a multiple of --n-head", 1);
  line.add("--vocab-size", o.vocab_size, "Vocabulary; default: the tokenizer's", 1);
  line.add("--context", o.context, "Longest sequence; crops that of a loaded model", 1);
  line.add("--bias", o.bias, "Biases in layers and norms of a GPT-2 with random weights");
  line.add_choice("--activation", o.activation,
                  "Of such a GPT-2's MLP, by its name in config.json; default gelu_new",
                  activations);

  line.group("Data");
  line.add(
      "--data", o.data,
      "Text files, .jsonl, .gz of them, folders, patterns, - for standard input; .bin of token "
      "ids or prepare_data's folder");
  line.add("--val-data", o.val_data, "The same, for validation; default: a tenth of the text");
  line.add_choice("--tokenizer", o.tokenizer, "How text becomes tokens", tokenizers);
  line.add("--tokenizer-dir", o.tokenizer_dir,
           "Folder with tokenizer.json, or vocab.json + merges.txt");
  line.add(
      "--pack", o.pack,
      "Puts as many pairs (prepare_data --pairs) into each sequence as fit, by default of 1024 "
      "tokens; attention and positions stay within a pair");
  line.add_choice("--data-order", o.data_order, "Order of the training sequences", data_orders);
  declare_text_options(line, o.text);

  line.group("Batch and length");
  line.add("--batch-size", o.batch_size, "Sequences per update", 1, 1 << 24);
  line.add_or_auto("--micro-batch", o.micro_batch,
                   "Sequences computed at a time, or auto: what suits", 1);
  line.add("--seq-len", o.seq_len, "Tokens per sequence; default: the context, or what pairs need",
           1);
  line.add("--steps", o.steps, "Updates", 0, std::int64_t{1} << 40);

  line.group("Optimizer");
  line.add_choice("--optimizer", o.optimizer,
                  "Update rule; adamw8bit: adamw with --state-layout int8", optimizers);
  line.add("--lr", o.lr,
           "Learning rate; default 1e-3, 3e-4 for a published shape, 5e-5 for a folder, 2e-4 for "
           "adapters",
           0, infinity);
  line.add_choice("--muon-scale", o.muon_scale,
                  "Muon's steps: by sqrt(outputs / inputs) (shape, the default), or as large as "
                  "AdamW's (rms)",
                  muon_scales);
  line.add("--muon-lr", o.muon_lr,
           "Rate of the matrices that Muon updates; default 0.02, with --muon-scale rms that of "
           "--lr",
           0, infinity);
  line.add("--muon-momentum", o.muon_momentum, "Muon's momentum; default 0.95", 0, 0.9999999);
  line.add("--lr-batch", o.lr_batch,
           "Batch size that --lr is for; the rate is scaled from it to --batch-size", 1, 1 << 24);
  line.add_choice(
      "--lr-scaling", o.lr_scaling,
      "How: by the root of the batches' ratio (sqrt, the default) or by the ratio (linear)",
      rate_scalings);
  line.add("--min-lr", o.min_lr, "Rate at the end of the schedule; default a tenth of --lr", 0,
           infinity);
  line.add("--warmup-steps", o.warmup_steps, "Updates until the rate is full");
  line.add_choice("--lr-schedule", o.lr_schedule, "Shape of the rate after warm-up",
                  rate_schedules);
  // A beta of 1 would make the bias correction divide by zero.
  line.add("--beta1", o.beta1, "AdamW's first decay; SGD's momentum", 0, 0.9999999);
  line.add("--beta2", o.beta2, "AdamW's second decay", 0, 0.9999999);
  line.add("--eps", o.eps, "AdamW's epsilon, outside the root", 0, 1);
  line.add("--weight-decay", o.weight_decay, "Decoupled; on tensors of two or more dimensions", 0,
           infinity);
  line.add("--grad-clip", o.grad_clip, "Bound on the global gradient norm; 0: none", 0, infinity);
  line.add("--dropout", o.dropout,
           "Probability, everywhere that GPT-2 has it; default: the model's config.json, or 0", 0,
           0.999);
  line.add("--attention-dropout", o.attention_dropout,
           "Probability for attention's weights; default: --dropout", 0, 0.999);
  line.add("--embedding-dropout", o.embedding_dropout,
           "Probability for embedded tokens; default: --dropout", 0, 0.999);

  line.group("Adapters");
  line.add("--lora-rank", o.lora_rank,
           "Train low-rank adapters of this rank (LoRA) and leave the model's weights as they are",
           1);
  line.add("--lora-alpha", o.lora_alpha,
           "What adapters compute is multiplied by this over the rank; default: twice the rank", 0,
           infinity);
  line.add("--lora-targets", o.lora_targets,
           "Matrices that get one: attention, mlp, all (the default), or ends of names between "
           "commas: q_proj,v_proj");
  line.add("--lora-dropout", o.lora_dropout, "Probability for what adapters read; default 0", 0,
           0.999);
  line.add("--adapter", o.adapter, "Train on from the adapters of this folder, in PEFT's form");
  line.add("--int8-base", o.int8_base,
           "Keep the matrices of the model's blocks in 8 bits while adapters are trained");

  line.group("Machine");
  line.add_choice("--precision", o.precision,
                  "Arithmetic; master weights stay fp32. auto: fp32 on the CPU, 16 bits on a GPU",
                  precisions);
  line.add_choice("--device", o.device, "Where to compute", devices);
  line.add_choice(
      "--attention", o.attention,
      "A GPU's attention kernel in 16 bits; tma (with wgmma, on an H100 or H200, without "
      "dropout) computes the forward pass up to 9 % faster",
      attention_kernels);
  line.add(
      "--cuda-graph", o.cuda_graph,
      "Give a GPU whole passes instead of kernels one by one; for one rank without dropout, with "
      "all state on the GPU");
  line.add("--threads", o.threads, "CPU threads; 0: all cores", 0, 4096);

  line.group("Memory");
  line.add_size("--gpu-memory", o.gpu_memory,
                "Budget, such as 11GiB or 11G; default: what the GPU has free");
  line.add_size("--host-memory", o.host_memory,
                "Budget for the whole process, such as 16GiB; default: what the machine has");
  line.add_or_auto("--recompute", o.recompute,
                   "none, gelu, gelu+ln, block, block+host; or of the first layers, then the rest: "
                   "block*12,gelu+ln");
  line.add("--head-chunk", o.head_chunk,
           "Tokens whose logits exist at a time; default: 1024, on a GPU up to 8192 if they fit", 1,
           std::int64_t{1} << 30);
  line.add_choice("--state-layout", o.state_layout, "How master weights and moments are stored",
                  state_layouts);
  line.add_choice("--gradients", o.gradients, "Dtype in which matrices' gradients are summed",
                  gradient_types);
  line.add_choice(
      "--offload", o.offload,
      "Optimizer state in host memory (with --state-home: on a disk): what does not fit, none, or "
      "all blocks'",
      offloads);
  line.add(
      "--resident-blocks", o.resident_blocks,
      "Blocks, from the lowest, whose state stays on the GPU (with --state-home also: in the CPU's "
      "memory); default: as many as fit");
  line.add("--cpu-blocks", o.cpu_blocks,
           "Blocks, from the highest, whose state the CPU updates in host memory; default: as many "
           "as save time");
  line.add("--host-blocks", o.host_blocks,
           "Blocks, from the highest, whose weights and gradients rest in host memory with their "
           "state and visit the GPU, with --pipeline layer-major; default: as few as fit");
  line.add(
      "--cpu-tables", o.cpu_tables,
      "The CPU updates the embeddings and the vocabulary head too, and their state rests in "
      "host memory, beside --host-blocks; default: if nothing else fits, unless --host-blocks is "
      "given");
  line.add("--state-home", o.state_home,
           "Folder on a disk, for the optimizer state that leaves the GPU's memory or, on the CPU, "
           "does not fit into --host-memory; it rests in an unnamed file there, and the CPU "
           "updates it");
  line.add_or_auto(
      "--speculative-blocks", o.speculative_blocks,
      "Blocks at most, from the highest whose state visits the GPU, updated under the backward "
      "pass already, and again in steps that clip; auto: as many as save time. Takes a second copy "
      "of their state in host memory",
      0);
  line.add("--stream-chunk", o.stream_chunk,
           "Parameters that stream at a time; default: 4 Mi, fewer where memory is short", 1,
           std::int64_t{1} << 30);
  line.add("--staging-chunks", o.staging_chunks,
           "Chunks that may be on their way; default: 4, or 2 where memory is short", 1, 64);
  line.add("--plan", o.plan, "Print the memory plan and stop");

  line.group("Ranks (of scripts/launch, mpirun or srun)");
  line.add("--dp", o.dp,
           "Replicas of the model that share each batch; default: all that --pp and --tp leave", 1);
  line.add("--pp", o.pp, "Ranks among which each replica's blocks are divided (pipeline)", 1, 4096);
  line.add("--tp", o.tp, "Ranks that divide the matrices of each stage (tensor parallelism)", 1,
           1024);
  line.add("--sequence-parallel", o.sequence_parallel,
           "The ranks of --tp divide the tokens too, where they would all hold the same");
  declare_pipeline(line, o);
  line.add("--virtual-stages", o.virtual_stages, "Stages on each rank, for interleaved", 1, 1024);
  line.add_parsed(
      "--pipeline-split",
      "Evenly by blocks, by parameters or by measured time, or the blocks of each stage: 3,4,4,1",
      [&o](const std::string& text) { o.pipeline_split = parse_block_split(text); },
      [&o] { return to_string(o.pipeline_split); });
  line.add_choice("--stash", o.stash,
                  "What a stage keeps of a micro-batch: all that backward needs (auto, but for "
                  "layer-major), or "
                  "its input alone",
                  stashes);
  line.add_size(
      "--max-stash", o.max_stash,
      "With --stash input: a rank's inputs beyond this rest in host memory; default: none "
      "rest there, or all if layer-major",
      std::size_t{1} << 10);
  line.add("--zero", o.zero,
           "Each replica keeps a part of the optimizer state (1), and of the gradients (2)", 0, 2);
  line.add_size("--bucket-size", o.bucket_size,
                "Gradients that are reduced at a time; default 4MiB, between GPUs 25MiB",
                std::size_t{4} << 10);
  line.add_choice("--communication", o.communication,
                  "How GPUs exchange; auto: NCCL where each rank has one of its own",
                  communications);
  line.add("--overlap", o.overlap, "Reduce gradients while the rest of backward runs");
  line.add("--check-replicas", o.check_replicas,
           "Compare the ranks' weights every this many steps; 0: never");
  line.add("--checked", o.checked, "Compare the ranks' operations with each other, one by one");
  line.add("--collective-timeout", o.collective_timeout,
           "Seconds after which an operation that some rank does not join ends the job", 1, 1e6);
  line.add_output("--rank-files", o.rank_files,
                  "Folder for what each rank was doing; default: a temporary one",
                  [](const std::string& folder) { require_folder_name("--rank-files", folder); });
  line.add(
      "--inject", o.inject,
      "Make a fault, to try the reports: rank=1,op=42,kind=stop|exit|kill|abort|segfault|throw|"
      "memory|skip|mismatch|count|type|slow");

  line.group("Run");
  line.add_output("--output", o.output, "Folder of the run; default runs/<time>",
                  require_run_or_new);
  add_trace(line, o.trace, "Write when what ran on the device to this file, for Perfetto");
  line.add_or_auto(
      "--save-every", o.save_every,
      "Checkpoint every so many steps, or so often: 500, 10min; 0: only at the end; auto: every "
      "5min, or more rarely where saving takes long");
  line.add("--no-save", o.no_save, "Save and export nothing at the end, to try how fast a run is");
  line.add("--async-save", o.async_save,
           "Train on while a copy of a checkpoint, in host memory, is being written");
  line.add("--keep", o.keep, "Checkpoints kept; default: as the run that goes on, else 2", 1);
  declare_resume(line, o);
  line.add("--val-every", o.val_every, "Validate every this many steps; 0: only at the end");
  line.add("--val-steps", o.val_steps,
           "Batches of --batch-size sequences per validation, from the beginning of the data", 1,
           std::int64_t{1} << 30);
  line.add("--eval-train", o.eval_train,
           "With each validation, also compute the loss of as many sequences of the training data");
  line.add("--keep-best", o.keep_best,
           "Keep the model with the lowest validation loss in OUTPUT/best");
  line.add("--sample-every", o.sample_every, "Sample every this many steps; 0: only at the end");
  line.add("--sample-tokens", o.sample_tokens, "Tokens of a sample; 0: no samples");
  line.add_text("--prompt", o.prompt, "Text that samples continue");
  line.add("--log-every", o.log_every,
           "Print a line every this many steps; default: about 50 lines, on a terminal one line "
           "that is drawn over. log.jsonl has every step",
           1);
  line.add("--peak-tflops", o.peak_tflops,
           "TFLOP/s of one rank of which MFU is the share, as in a data sheet; default: those of a "
           "matrix product, measured at the start. It changes no plan",
           1e-6, 1e6);
  line.add("--quiet", o.quiet, "Print errors, warnings and how the run ended alone");
  line.add("--verbose", o.verbose, "Print every step, and what its time went to");
  line.add("--seed", o.seed, "Of weights, data order, dropout and samples");
  line.add("--max-bad-steps", o.max_bad_steps,
           "Stop (exit code 3) after this many skipped updates in a row", 1);
  line.add("--skip-loss-spike", o.skip_loss_spike,
           "Skip updates whose loss is this many standard deviations above the mean; 0: none", 0,
           infinity);
  line.add("--skip-grad-spike", o.skip_grad_spike, "The same for the gradient norm", 0, infinity);
  line.add("--spike-window", o.spike_window,
           "Updates that mean and deviation are taken of; before as many are done none is skipped",
           2, 4096);
  line.add("--skip-batches", o.skip_batches,
           "With --resume: leave out this many batches of the data; each resume leaves out more", 0,
           std::int64_t{1} << 40);
  line.allow_config_file();
}

MuonOptions muon_options(const TrainOptions& o, double rate) {
  const bool shared = o.muon_scale == MuonScale::rms;
  const double muon_rate = o.muon_lr.value_or(shared ? rate : 0.02);
  return {
      .momentum = o.muon_momentum.value_or(0.95),
      .weight_decay = o.weight_decay,
      .scale = o.muon_scale.value_or(MuonScale::shape),
      .rate_factor = rate == 0 ? 1 : muon_rate / rate,
      .adamw = {
          .beta1 = o.beta1, .beta2 = o.beta2, .epsilon = o.eps, .weight_decay = o.weight_decay}};
}

double rate_factor(const TrainOptions& o) {
  if (o.optimizer != OptimizerKind::muon && (o.muon_scale || o.muon_lr || o.muon_momentum))
    fail(fmt::format("--muon-{} is for --optimizer muon, not {}",
                     o.muon_scale ? "scale"
                     : o.muon_lr  ? "lr"
                                  : "momentum",
                     name_in(optimizers, o.optimizer)),
         ErrorKind::usage);
  if (o.lr_scaling && !o.lr_batch)
    fail("--lr-scaling: give --lr-batch, the batch that --lr is for", ErrorKind::usage);
  const auto batch = static_cast<double>(o.batch_size);
  const double ratio = batch / static_cast<double>(o.lr_batch.value_or(o.batch_size));
  return o.lr_scaling == RateScaling::linear ? ratio : std::sqrt(ratio);
}

std::string flags_to_repeat(const CommandLine& line, bool cluster) {
  std::vector<std::string> without{"--plan",
                                   "--json",
                                   "--device-profile",
                                   "--probe",
                                   "--save-probe",
                                   "--schedule-svg",
                                   "--schedule-csv",
                                   "--scaling",
                                   "--gpus",
                                   "--top",
                                   "--link-bandwidth",
                                   "--link-latency",
                                   "--ranks-per-node",
                                   "--network-bandwidth",
                                   "--network-latency",
                                   "--micro-batch",
                                   "--recompute",
                                   "--state-layout",
                                   "--gradients",
                                   "--offload",
                                   "--resident-blocks",
                                   "--stream-chunk",
                                   "--staging-chunks",
                                   "--cpu-blocks",
                                   "--host-blocks",
                                   "--cpu-tables",
                                   "--speculative-blocks"};
  if (cluster)
    without.insert(without.end(),
                   {"--dp", "--pp", "--tp", "--pipeline", "--virtual-stages", "--pipeline-split",
                    "--stash", "--max-stash", "--sequence-parallel", "--zero"});
  return line.repeated(without);
}

}  // namespace sluice
