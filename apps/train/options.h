#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command_line.h"
#include "apps/cli/machine.h"
#include "apps/data/text_options.h"
#include "apps/flags/no_effect.h"
#include "apps/train/choices.h"
#include "models/decoder/config.h"
#include "models/decoder/parallelize.h"
#include "parallel/comm/mesh.h"

namespace sluice {

/// The options of train_gpt2 as the user gave them, before anything was looked up. Fields are named
/// after the flags; `declare_options` is the table of their meanings. None stands for auto, or for
/// a default that depends on other things.
struct TrainOptions {
  std::string model;  ///< empty: the shape is given by the fields below
  std::int64_t n_layer = 4, n_head = 4, n_embd = 128;
  std::optional<std::int64_t> vocab_size, context;
  bool bias = true, pack = false;
  std::optional<MlpActivation> activation;

  std::vector<std::string> data, val_data;
  TextOptions text;
  std::optional<TokenizerKind> tokenizer;
  std::string tokenizer_dir;
  SequenceSampler::Order data_order = SequenceSampler::Order::shuffled;

  std::int64_t batch_size = 16;
  std::optional<std::int64_t> micro_batch, seq_len;
  std::int64_t steps = 600;

  OptimizerKind optimizer = OptimizerKind::adamw;
  std::optional<MuonScale> muon_scale;  ///< none: shape
  std::optional<double> lr, min_lr, muon_lr, muon_momentum;
  std::optional<std::int64_t> lr_batch;   ///< the batch that `lr` is for; none: --batch-size
  std::optional<RateScaling> lr_scaling;  ///< none: sqrt
  std::int64_t warmup_steps = 20;
  ScheduleKind lr_schedule = ScheduleKind::cosine;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, grad_clip = 1.0;
  std::optional<std::int64_t> lora_rank;  ///< none: no adapters, or those of `adapter`
  std::optional<double> lora_alpha, lora_dropout;
  std::string lora_targets, adapter;
  std::optional<double> dropout;  ///< none: as the model's config.json has it
  std::optional<double> attention_dropout, embedding_dropout;  ///< none: as `dropout`

  std::optional<PrecisionName> precision;
  std::optional<DeviceKind> device;
  AttentionKernel attention = AttentionKernel::mma;
  bool cuda_graph = false;
  std::int64_t threads = 0;

  std::optional<std::size_t> gpu_memory, host_memory;  ///< bytes; none: what the machine has
  std::optional<std::string> recompute;                ///< what parse_recompute reads
  std::optional<StateLayout> state_layout;
  std::optional<DType> gradients;
  std::optional<Offload> offload;
  std::optional<std::int64_t> head_chunk;
  std::optional<std::int64_t> speculative_blocks = 0;
  std::optional<std::int64_t> resident_blocks, cpu_blocks, stream_chunk, staging_chunks;
  std::optional<std::int64_t> host_blocks;
  bool cpu_tables = false, int8_base = false;
  std::string state_home;  ///< a folder; empty: no state rests in a file
  bool plan = false, json = false, scaling = false;

  std::optional<std::int64_t> dp;
  std::int64_t pp = 1, tp = 1, zero = 0;
  std::optional<PipelineOption> pipeline;  ///< none: no pipeline unless --pp, then 1f1b
  std::int64_t virtual_stages = 1;
  BlockSplit pipeline_split;
  std::optional<Stash> stash;  ///< none: the input if layer-major, else the graph
  std::optional<std::size_t> max_stash, bucket_size;  ///< bytes
  std::optional<GpuExchange> communication;
  bool sequence_parallel = false, overlap = true, checked = true;
  std::int64_t check_replicas = 100;
  double collective_timeout = 120;
  std::string rank_files, inject;
  std::string device_profile, probe, schedule_svg, schedule_csv;
  std::int64_t gpus = 0, top = 10, ranks_per_node = 8;
  std::string link_bandwidth, network_bandwidth = "12.5GB";  ///< bytes per second
  std::optional<double> link_latency, peak_tflops;           ///< microseconds; TFLOP/s
  double network_latency = 10;

  std::string output, trace, prompt;
  ResumeOption resume;
  std::optional<std::string> save_every;  ///< what SaveCadence reads
  std::optional<std::int64_t> keep;
  bool no_save = false, async_save = false, keep_best = false, eval_train = false;
  std::int64_t val_every = 100, val_steps = 20, sample_every = 0, sample_tokens = 200;
  std::optional<std::int64_t> log_every;
  bool quiet = false, verbose = false;
  std::uint64_t seed = 1337;
  std::int64_t max_bad_steps = 5;
  double skip_loss_spike = 0, skip_grad_spike = 0;
  std::int64_t spike_window = 128, skip_batches = 0;

  GivenFlags given{};
  /// The flags that a printed training command has to repeat; see flags_to_repeat.
  std::string asked;

  /// A single process runs as a pipeline of one rank if --pipeline asks for it.
  bool pipelined() const { return pp > 1 || pipeline; }
  /// The schedule of a run with a pipeline.
  PipelineOption schedule() const { return pipeline.value_or(PipelineOption()); }
  bool layer_major() const { return pipeline && pipeline->is(ScheduleName::layer_major); }
  Stash stashed() const { return stash.value_or(layer_major() ? Stash::input : Stash::graph); }
};

/// Returns the mesh of ranks that the options describe, whether or not these ranks exist.
inline Mesh planned_mesh(const TrainOptions& options) {
  return {.dp = static_cast<int>(options.dp.value_or(1)),
          .pp = static_cast<int>(options.pp),
          .tp = static_cast<int>(options.tp)};
}

/// Returns the options of a single process with all of the model.
TrainOptions without_parallelism(TrainOptions options);

/// Returns how many sequences of an update each replica of the model computes.
inline std::int64_t share_of(const TrainOptions& options) {
  return options.batch_size / options.dp.value_or(1);
}

/// Returns --bucket-size in bytes; by default 25 MiB with GPUs, so that a bucket takes longer than
/// its latency, else 4 MiB. On the host, reductions take scratch memory of 4 (N-1)/N buckets for N
/// ranks.
std::size_t bucket_bytes(const TrainOptions& options, bool gpu);

/// `rate`: what --lr is, before it is scaled to the batch.
MuonOptions muon_options(const TrainOptions& options, double rate);

/// Returns the factor by which --lr is scaled to the batch: linear after Goyal et al., "Accurate,
/// large minibatch SGD", 2017; by the root after Malladi et al., "On the SDEs and scaling rules for
/// adaptive gradient algorithms", 2022.
double rate_factor(const TrainOptions& options);

void declare_options(CommandLine& line, TrainOptions& options);

/// Returns the given flags that a command must repeat to train as a plan says. Leaves out flags of
/// planning and those that the plan spells out; with `cluster` these include the flags that divide
/// the work between ranks.
std::string flags_to_repeat(const CommandLine& line, bool cluster = false);

}  // namespace sluice
