#include "apps/plan/memory_flags.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {
namespace {

bool adafactor(const TrainConfig& o) {
  return o.optimizer.kind == OptimizerKind::adafactor;
}

bool copies_fast(const DeviceProfile& profile) {
  return profile.gpu && profile.to_device_rate > 0 && profile.to_host_rate > 0;
}

/// Returns true if a run on the CPU may keep state in a file.
bool leaves_cpu(const TrainConfig& o, const DeviceProfile& profile) {
  return !profile.gpu && !o.memory.state_home.empty();
}

bool speculates(const TrainConfig& o) {
  return o.memory.speculative_blocks.value_or(1) > 0;
}

/// Returns the flag that asks for optimizer state off the GPU; null if none does.
const char* away_flag(const TrainConfig& o, std::int64_t layers) {
  if (o.memory.offload == Offload::all) return "--offload all";
  if (o.memory.resident_blocks.value_or(layers) < layers) return "--resident-blocks";
  if (o.memory.cpu_blocks.value_or(0) > 0) return "--cpu-blocks";
  return speculates(o) ? "--speculative-blocks" : nullptr;
}

/// True if the flags are about several ranks, or about a pipeline.
bool among_ranks(const TrainConfig& o) {
  return o.parallel.dp.value_or(1) * o.parallel.pp * o.parallel.tp > 1 || o.parallel.pipelined() ||
         o.planning.scaling;
}

/// Refuses --speculative-blocks where updates cannot begin during the backward pass.
void require_speculation(const TrainConfig& o) {
  if (!speculates(o)) return;
  const auto refuse = [&](const std::string& why) {
    const auto given = o.memory.speculative_blocks;
    fail(fmt::format("--speculative-blocks {}: {}", given ? std::to_string(*given) : "auto", why),
         ErrorKind::usage);
  };
  if (o.memory.offload == Offload::off) refuse("with --offload off no state visits the GPU");
  if (!o.memory.state_home.empty())
    refuse("with --state-home the CPU updates the state, and no update can be undone");
  if (among_ranks(o))
    refuse(
        "among several ranks and in a pipeline gradients are complete after the backward pass "
        "alone; leave it out");
}

/// True if replicas divide the optimizer state.
bool divides_state(const TrainConfig& o) {
  return o.parallel.zero > 0 && o.parallel.dp.value_or(1) > 1;
}

/// Refuses --host-blocks and --cpu-tables where the weights of blocks cannot stream.
void require_host_blocks(const TrainConfig& o, std::int64_t layers, const DeviceProfile& profile) {
  if (o.memory.cpu_tables && o.memory.host_blocks == 0)
    fail("--cpu-tables: with --host-blocks 0 no block's state rests in host memory; leave it out",
         ErrorKind::usage);
  const std::int64_t blocks = o.memory.host_blocks.value_or(o.memory.cpu_tables ? 1 : 0);
  if (blocks == 0) return;
  const auto refuse = [&](const std::string& why) {
    const std::string flag =
        o.memory.host_blocks ? fmt::format("--host-blocks {}", blocks) : "--cpu-tables";
    fail(fmt::format("{}: {}", flag, why), ErrorKind::usage);
  };
  if (blocks > layers) refuse(fmt::format("the model has {} blocks", layers));
  if (!profile.gpu) refuse("this run computes on the CPU, where all is in host memory");
  if (!copies_fast(profile))
    refuse(
        "how fast this GPU copies from and to host memory is not known; measure it with plan "
        "--save-probe");
  if (!o.parallel.layer_major())
    refuse(
        "a block's weights would visit the GPU for every micro-batch; give --pipeline layer-major, "
        "with which they visit twice a step");
  if (divides_state(o))
    refuse(fmt::format("each rank updates all weights; leave out --zero {}", o.parallel.zero));
  if (takes_whole_tensors(o.optimizer.kind))
    refuse(fmt::format("--optimizer {} updates on the GPU alone; use adamw",
                       name_in(optimizers, o.optimizer.kind)));
  if (o.memory.offload == Offload::all || o.memory.resident_blocks ||
      o.memory.cpu_blocks.value_or(0) > 0)
    refuse(
        "the state of all other blocks stays on the GPU; leave out --offload, --resident-blocks "
        "and --cpu-blocks");
}

/// Refuses flags that place state in host memory where the CPU trains.
void require_gpu(const TrainConfig& o, const DeviceProfile& profile) {
  if (profile.gpu) return;
  const auto refuse = [](const char* flag, const char* instead) {
    fail(fmt::format("{}: this run computes on the CPU, where all state is in host memory{}", flag,
                     instead),
         ErrorKind::usage);
  };
  const bool leaves = leaves_cpu(o, profile);
  if (o.memory.cpu_blocks.value_or(0) > 0) refuse("--cpu-blocks", "");
  if (speculates(o)) refuse("--speculative-blocks", "");
  const char* const file = "; with --state-home it may rest on a disk";
  if (o.memory.offload == Offload::all && !leaves) refuse("--offload all", file);
  if (o.memory.resident_blocks && !leaves) refuse("--resident-blocks", file);
}

/// Refuses --state-home where the CPU cannot update the state.
void require_state_home(const TrainConfig& o, std::int64_t layers, const DeviceProfile& profile) {
  if (o.memory.state_home.empty()) return;
  const auto refuse = [&](const std::string& why) {
    fail(fmt::format("--state-home {}: {}", o.memory.state_home, why), ErrorKind::usage);
  };
  if (adafactor(o)) refuse("with --optimizer adafactor state is small and stays in memory");
  if (o.optimizer.kind == OptimizerKind::muon && profile.gpu)
    refuse("the CPU would update the state, and --optimizer muon updates on the GPU alone");
  const std::int64_t away = layers - o.memory.resident_blocks.value_or(0);
  if (profile.gpu && o.memory.cpu_blocks.value_or(away) != away)
    refuse(
        fmt::format("the CPU updates all blocks whose state leaves the GPU, and --cpu-blocks is {} "
                    "of {}; leave it out",
                    *o.memory.cpu_blocks, away));
}

/// Refuses --cuda-graph where a pass is not the same in every step, or waits within.
void require_graphs(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile) {
  if (!o.machine.cuda_graph) return;
  const auto refuse = [](const std::string& why) {
    fail(fmt::format("--cuda-graph {}; leave it out", why), ErrorKind::usage);
  };
  if (!profile.gpu) refuse("is for a GPU, and this run computes on the CPU");
  if (among_ranks(o)) refuse("is for one rank without a pipeline");
  for (const double dropout : {setup.trainer.dropout.residual, setup.trainer.dropout.attention,
                               setup.trainer.dropout.embedding})
    if (dropout > 0)
      refuse(
          fmt::format("would draw the same numbers in every step, and --dropout is {}", dropout));
  if (setup.data.train && setup.data.train->in_rows())
    refuse("divides each batch by the same number of targets, and in batches of pairs it differs");
  if (const char* flag = away_flag(o, setup.config.n_layer); flag != nullptr)
    fail(fmt::format(
             "--cuda-graph needs all state on the GPU, and {} is given; leave one of them out",
             flag),
         ErrorKind::usage);
}

/// Refuses block counts that contradict --offload or exceed the blocks that can be in host memory.
void require_blocks(const TrainConfig& o, std::int64_t layers) {
  const std::int64_t resident =
      o.memory.resident_blocks.value_or(o.memory.offload == Offload::all ? 0 : layers);
  if ((o.memory.offload == Offload::all && resident > 0) ||
      (o.memory.offload == Offload::off && resident < layers))
    fail(fmt::format("--resident-blocks {} says what --offload {} says otherwise; give one of them",
                     *o.memory.resident_blocks, name_in(offloads, *o.memory.offload)),
         ErrorKind::usage);
  if (o.memory.resident_blocks.value_or(0) > layers)
    fail(fmt::format("--resident-blocks {}: the model has {} blocks", *o.memory.resident_blocks,
                     layers),
         ErrorKind::usage);
  const std::int64_t cpu = o.memory.cpu_blocks.value_or(0);
  if (cpu > 0 && o.optimizer.kind == OptimizerKind::muon)
    fail(fmt::format("--cpu-blocks {}: --optimizer muon updates on the GPU alone; its state can "
                     "visit the GPU: --offload all, --resident-blocks",
                     cpu),
         ErrorKind::usage);
  if (cpu > 0 && o.memory.offload == Offload::off)
    fail(fmt::format("--cpu-blocks {}: with --offload off no state rests in host memory", cpu),
         ErrorKind::usage);
  const std::int64_t away = layers - o.memory.resident_blocks.value_or(0);
  if (cpu > away)
    fail(fmt::format("--cpu-blocks {}: of {} blocks {} rest in host memory{}", cpu, layers, away,
                     o.memory.resident_blocks
                         ? fmt::format(" with --resident-blocks {}", *o.memory.resident_blocks)
                         : " at most"),
         ErrorKind::usage);
}

const char* why_inputs_stay(const RunSetup& setup, const DeviceProfile& profile) {
  if (setup.trainer.graphs) return "with --cuda-graph inputs stay on the GPU; use block";
  if (setup.pipeline)
    return "in a pipeline inputs rest in host memory by --stash input --max-stash";
  if (!profile.gpu) return "this run computes on the CPU, where all is in host memory; use block";
  return "how fast this GPU copies from and to host memory could not be measured; use block";
}

}  // namespace

bool can_stream(const TrainConfig& o, const DeviceProfile& profile) {
  return (copies_fast(profile) || leaves_cpu(o, profile)) && o.memory.offload != Offload::off &&
         !adafactor(o) && !o.machine.cuda_graph;
}

bool can_share_cpu(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile) {
  return can_stream(o, profile) && profile.host_rate > 0 && !setup.pipeline &&
         o.optimizer.kind != OptimizerKind::muon;
}

bool can_rest_weights(const TrainConfig& o, const DeviceProfile& profile) {
  return copies_fast(profile) && o.parallel.layer_major() && !divides_state(o) &&
         !takes_whole_tensors(o.optimizer.kind) && !o.adapter.rank && o.adapter.folder.empty() &&
         !o.memory.offload && !o.memory.resident_blocks && o.memory.cpu_blocks.value_or(0) == 0;
}

bool can_rest_inputs(const RunSetup& setup, const DeviceProfile& profile) {
  return copies_fast(profile) && !setup.pipeline && !setup.trainer.graphs;
}

bool fixes_memory(const TrainConfig& o) {
  return o.batch.micro_batch || o.memory.head_chunk || o.memory.recompute ||
         o.memory.state_layout || o.memory.gradients || o.memory.offload ||
         o.memory.resident_blocks || o.memory.cpu_blocks || o.memory.stream_chunk ||
         o.memory.staging_chunks || o.memory.host_blocks || o.memory.cpu_tables ||
         o.memory.speculative_blocks != 0;
}

TrainConfig without_memory_flags(TrainConfig o) {
  o.batch.micro_batch.reset();
  o.memory.head_chunk.reset();
  o.memory.recompute.reset();
  o.memory.state_layout.reset();
  o.memory.gradients.reset();
  o.memory.offload.reset();
  o.memory.speculative_blocks = 0;
  o.memory.resident_blocks.reset();
  o.memory.cpu_blocks.reset();
  o.memory.host_blocks.reset();
  o.memory.cpu_tables = false;
  o.memory.stream_chunk.reset();
  o.memory.staging_chunks.reset();
  return o;
}

void validate_memory_flags(const TrainConfig& o, const RunSetup& setup,
                           const DeviceProfile& profile) {
  const std::int64_t layers = setup.config.n_layer;
  if (const char* flag = away_flag(o, layers); flag != nullptr && adafactor(o))
    fail(fmt::format("{}: with --optimizer adafactor no state can be in host memory; its state is "
                     "small and stays on the GPU",
                     flag),
         ErrorKind::usage);
  require_gpu(o, profile);
  require_state_home(o, layers, profile);
  if (const char* flag = away_flag(o, layers);
      flag != nullptr && !copies_fast(profile) && profile.gpu)
    fail(
        fmt::format("{}: how fast this GPU copies from and to host memory is not known; measure it "
                    "with plan --save-probe",
                    flag),
        ErrorKind::usage);
  require_graphs(o, setup, profile);
  require_blocks(o, layers);
  require_host_blocks(o, layers, profile);
  require_speculation(o);
  if (o.memory.recompute && !can_rest_inputs(setup, profile) &&
      std::ranges::count(parse_recompute(*o.memory.recompute, layers), Recompute::block_on_host) >
          0)
    fail(fmt::format("--recompute {}: {}", *o.memory.recompute, why_inputs_stay(setup, profile)),
         ErrorKind::usage);
}

}  // namespace sluice
