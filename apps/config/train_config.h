#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/checkpoint/checkpoint_config.h"
#include "apps/cli/command_line.h"
#include "apps/cli/machine.h"
#include "apps/config/choices.h"
#include "apps/data/data_config.h"
#include "apps/flags/no_effect.h"
#include "models/decoder/config.h"
#include "optim/optimizer_config.h"
#include "optim/space/state_layout.h"
#include "parallel/parallel_config.h"

namespace sluice {

/// The model to train: a folder, a shape, or a shape of its own.
struct ModelConfig {
  std::string name;  ///< a folder, a published shape or a config.json; empty: the fields below
  std::int64_t n_layer = 4, n_head = 4, n_embd = 128;
  std::optional<std::int64_t> vocab_size, context;
  std::optional<double> dropout;  ///< probability; none: as the model's config.json has it
};

/// Returns the probabilities of dropout: those of the flags, else of the model's config.json.
DropoutConfig dropout_of(const ModelConfig& model, const DecoderConfig& config);

struct BatchConfig {
  std::int64_t size = 16;  ///< sequences per update, of all ranks
  std::optional<std::int64_t> micro_batch, seq_len;
  std::int64_t steps = 600;  ///< updates
};

/// Low-rank adapters (LoRA).
struct AdapterConfig {
  std::optional<std::int64_t> rank;  ///< none: no adapters, or those of `folder`
  std::optional<double> alpha, dropout;
  std::string targets, folder;
  bool int8_base = false;  ///< keeps the blocks' matrices in 8 bits
};

/// The memory that a run may take, and what fixes parts of its plan. None: the plan decides.
struct MemoryConfig {
  std::optional<std::size_t> gpu, host;  ///< bytes; none: what the machine has
  std::string placement;                 ///< see parse_placement(); empty: auto
  std::optional<StateLayout> state_layout;
  std::optional<DType> gradients;
  std::optional<std::int64_t> head_chunk;
  std::optional<std::int64_t> stream_chunk;    ///< parameters that stream at a time
  std::optional<std::int64_t> staging_chunks;  ///< chunks on their way at a time
  std::string state_home;  ///< a folder on a disk; empty: no state is offloaded to one
};

struct EvaluationConfig {
  std::int64_t val_every = 100, val_steps = 20;
  std::int64_t sample_every = 0, sample_tokens = 200;
  std::string prompt;
};

struct LogConfig {
  std::optional<std::int64_t> every;  ///< steps between printed lines
  std::optional<double> peak_tflops;  ///< TFLOP/s of one rank, of which MFU is the share
  std::string trace;                  ///< file; empty: none
  bool quiet = false, verbose = false;
};

/// Which updates are skipped, and when a run stops because of them.
struct GuardConfig {
  std::int64_t max_bad_steps = 5;
  double spike = 0;  ///< of loss or gradient norm: standard deviations above the mean; 0: none
};

/// The machine and network that a plan is made for, and the tables that it prints.
struct PlanConfig {
  bool json = false, scaling = false;
  std::string device_profile, probe, schedule_svg, schedule_csv;
  std::int64_t gpus = 0, top = 10, ranks_per_node = 8;
  std::string link, network;  ///< see parse_link(); empty: the device's, and 12.5GB,10us
};

/// The settings of train_gpt2 and plan as the user gave them, before anything was looked up. Fields
/// are named after the flags; declare_config() is the table of their meanings.
struct TrainConfig {
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  AdapterConfig adapter;
  MachineConfig machine;
  MemoryConfig memory;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  EvaluationConfig evaluation;
  LogConfig log;
  GuardConfig guard;
  PlanConfig planning;
  std::uint64_t seed = 1337;  ///< of weights, data order, dropout and samples

  GivenFlags given{};
  /// The given flags that a printed training command has to repeat, beside those of the plan.
  std::string asked;

  /// Returns how many sequences of an update each replica of the model computes.
  std::int64_t batch_share() const { return batch.size / parallel.dp.value_or(1); }
};

void declare_config(CommandLine& line, TrainConfig& config);

}  // namespace sluice
