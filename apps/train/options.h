#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/command_line.h"
#include "apps/train/text_options.h"
#include "models/gpt2/config.h"
#include "parallel/mesh.h"

namespace sluice {

/// What the user of train_gpt2 asked for, before anything was looked up. Field names are the
/// flags'; `declare_options` is the table with their meaning.
struct TrainOptions {
  std::string model;  ///< empty: a shape of one's own
  std::int64_t n_layer = 4, n_head = 4, n_embd = 128;
  std::optional<std::int64_t> vocab_size, context;

  std::vector<std::string> data, val_data;
  TextOptions text;
  std::string tokenizer = "auto", tokenizer_dir;
  std::string data_order = "shuffled";

  std::int64_t batch_size = 16;
  std::string micro_batch = "auto";  ///< or a number
  std::optional<std::int64_t> seq_len;
  std::int64_t steps = 600;

  std::string optimizer = "adamw";
  std::optional<double> lr, min_lr;
  std::int64_t warmup_steps = 20;
  std::string lr_schedule = "cosine";
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, grad_clip = 1.0, dropout = 0;

  std::string precision = "auto", device = "auto";
  std::int64_t threads = 0;

  std::string gpu_memory, host_memory;  ///< "11GiB"; empty: what the machine has
  std::string recompute = "auto", state_layout = "auto", gradients = "auto", offload = "auto";
  std::string speculative_blocks = "0";  ///< or "auto"
  std::optional<std::int64_t> resident_blocks, cpu_blocks, stream_chunk, staging_chunks;
  bool plan = false, json = false;

  std::optional<std::int64_t> dp;
  std::int64_t pp = 1, tp = 1, zero = 0;
  std::string pipeline;  ///< a schedule or the CSV file of one; empty: what suits --pp
  std::int64_t virtual_stages = 1;
  std::string pipeline_split = "blocks", stash = "graph";
  std::string max_stash;                            ///< "1GiB"; empty: all that there is
  std::string bucket_size, communication = "auto";  ///< "4MiB"; empty: what suits the device
  bool sequence_parallel = false, overlap = true, checked = true;
  std::int64_t check_replicas = 100;
  double collective_timeout = 120;
  std::string rank_files, inject;

  std::string device_profile, probe;
  std::string schedule_svg, schedule_csv;
  bool scaling = false;
  std::int64_t gpus = 0, top = 10;
  std::string link_bandwidth, network_bandwidth = "12.5GB";  ///< bytes a second
  std::optional<double> link_latency;                        ///< microseconds
  double network_latency = 10;
  std::int64_t ranks_per_node = 8;

  std::string output, trace, resume = "auto";
  std::string save_every = "auto";  ///< or as SaveCadence reads it
  std::optional<std::int64_t> keep;
  bool no_save = false, async_save = false, keep_best = false;
  std::int64_t val_every = 100, val_steps = 20, sample_every = 0, sample_tokens = 200;
  std::string prompt;
  std::optional<std::int64_t> log_every;
  bool quiet = false, verbose = false;
  std::uint64_t seed = 1337;
  std::int64_t max_bad_steps = 5;
  double skip_loss_spike = 0, skip_grad_spike = 0;
  std::int64_t spike_window = 128, skip_batches = 0;
  bool deterministic = true;

  /// The flags that a command to train with repeats; see flags_to_repeat.
  std::string asked;

  /// One process is a pipeline of one rank if it is asked to be.
  bool pipelined() const { return pp > 1 || !pipeline.empty(); }
  std::string schedule_name() const { return pipeline.empty() ? "1f1b" : pipeline; }
};

/// The ranks that the options ask for, with or without them.
inline Mesh planned_mesh(const TrainOptions& options) {
  return {.dp = static_cast<int>(options.dp.value_or(1)),
          .pp = static_cast<int>(options.pp),
          .tp = static_cast<int>(options.tp)};
}

/// Sequences of an update that one replica of the model computes.
inline std::int64_t share_of(const TrainOptions& options) {
  return options.batch_size / options.dp.value_or(1);
}

/// --bucket-size in bytes. On the host it also sets what reductions take of the memory: four times
/// (N-1)/N of a bucket for N ranks. Between GPUs a bucket should be worth its latency.
std::size_t bucket_bytes(const TrainOptions& options, bool gpu);

void declare_options(CommandLine& line, TrainOptions& options);

/// Of the flags that were given, those that a command has to repeat which trains as a plan says:
/// not those of planning, nor those that the plan itself spells out, which with `cluster` are those
/// of ranks too.
std::string flags_to_repeat(const CommandLine& line, bool cluster = false);

}  // namespace sluice
