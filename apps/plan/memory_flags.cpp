#include "apps/plan/memory_flags.h"

#include <fmt/format.h>

#include <utility>

#include "apps/plan/run_facts.h"

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

}  // namespace

PlacementRequest requested_placement(const TrainConfig& o, const RunSetup& setup) {
  return parse_placement(o.memory.placement, setup.config.n_layer);
}

bool can_offload_state(const TrainConfig& o, const DeviceProfile& profile) {
  return (copies_fast(profile) || leaves_cpu(o, profile)) && !adafactor(o) && !o.machine.cuda_graph;
}

bool can_share_cpu(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile) {
  return can_offload_state(o, profile) && profile.host_rate > 0 && !setup.pipeline &&
         o.optimizer.kind != OptimizerKind::muon && o.memory.state_home.empty();
}

bool can_offload_weights(const TrainConfig& o, const RunSetup& setup,
                         const DeviceProfile& profile) {
  return copies_fast(profile) && o.parallel.pp == 1 &&
         (!o.parallel.pipeline || o.parallel.layer_major()) && !o.parallel.divides_state() &&
         !takes_whole_tensors(o.optimizer.kind) && setup.config.lora.rank == 0 &&
         !setup.trainer.graphs;
}

bool can_offload_inputs(const RunSetup& setup, const DeviceProfile& profile) {
  return copies_fast(profile) && !setup.pipeline && !setup.trainer.graphs;
}

bool fixes_memory(const TrainConfig& o) {
  return o.batch.micro_batch || o.memory.head_chunk || !o.memory.placement.empty() ||
         o.memory.state_layout || o.memory.gradients || o.memory.stream_chunk ||
         o.memory.staging_chunks;
}

TrainConfig without_memory_flags(TrainConfig o) {
  const MemoryConfig asked = std::exchange(o.memory, {});
  o.memory.gpu = asked.gpu;
  o.memory.host = asked.host;
  o.memory.state_home = asked.state_home;
  o.batch.micro_batch.reset();
  return o;
}

void validate_memory_flags(const TrainConfig& o, const RunSetup& setup,
                           const DeviceProfile& profile) {
  RunFacts facts = run_facts(o, setup);
  facts.gpu = profile.gpu;
  facts.copies_fast = copies_fast(profile);
  require_rules(facts, Known::machine);
}

}  // namespace sluice
