#include "apps/plan/memory_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

/// True if the flags are about several ranks, or about a pipeline.
bool among_ranks(const TrainConfig& o) {
  return o.parallel.dp.value_or(1) * o.parallel.pp * o.parallel.tp > 1 || o.parallel.pipelined() ||
         o.planning.scaling;
}

/// True if replicas divide the optimizer state.
bool divides_state(const TrainConfig& o) {
  return o.parallel.zero > 0 && o.parallel.dp.value_or(1) > 1;
}

/// The rules of --placement: where it is not supported, or contradicts another flag.
class PlacementRules {
 public:
  PlacementRules(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile)
      : o_(o), setup_(setup), profile_(profile), asked_(requested_placement(o, setup)) {}

  void require() const {
    require_residency();
    if (asks(Residency::speculative)) require_speculation();
    if (asks(Residency::host)) require_offloaded_weights();
    if (asked_.recompute && std::ranges::count(*asked_.recompute, Recompute::block_on_host) > 0 &&
        !can_offload_inputs(setup_, profile_))
      refuse(why_inputs_stay());
  }

  bool offloads() const {
    return asked_.residency && asked_.count(Residency::device) < setup_.config.n_layer;
  }

 private:
  bool asks(Residency residency) const { return asked_.count(residency) > 0; }

  [[noreturn]] void refuse(const std::string& why) const {
    fail(fmt::format("--placement {}: {}", o_.memory.placement, why), ErrorKind::usage);
  }

  void require_residency() const {
    if (!offloads()) return;
    if (adafactor(o_))
      refuse("with --optimizer adafactor no state can be in host memory; its state is small");
    if (!profile_.gpu && (!leaves_cpu(o_, profile_) ||
                          asked_.count(Residency::device) + asked_.count(Residency::streamed) <
                              setup_.config.n_layer))
      refuse(fmt::format(
          "this run computes on the CPU, where all is in host memory{}",
          asks(Residency::streamed) ? "; with --state-home state may be on a disk" : ""));
    if (profile_.gpu && !copies_fast(profile_))
      refuse(
          "how fast this GPU copies from and to host memory is not known; measure it with plan "
          "--save-probe");
    if (profile_.gpu && !o_.memory.state_home.empty() &&
        (asks(Residency::streamed) || asks(Residency::speculative)))
      refuse(
          "with --state-home the CPU updates all state that leaves the GPU; use offload-optimizer");
    if (o_.optimizer.kind == OptimizerKind::muon && asks(Residency::cpu))
      refuse("--optimizer muon updates on the GPU alone; use offload-state");
  }

  void require_speculation() const {
    if (among_ranks(o_))
      refuse(
          "among several ranks and in a pipeline gradients are complete after the backward pass "
          "alone; use offload-state");
  }

  void require_offloaded_weights() const {
    if (o_.parallel.pp > 1 || (o_.parallel.pipeline && !o_.parallel.layer_major()))
      refuse(
          "offload-all has all blocks on one rank, which serves all micro-batches block by block; "
          "leave out --pp and --pipeline");
    if (divides_state(o_))
      refuse(fmt::format("each rank updates all weights; leave out --zero {}", o_.parallel.zero));
    if (takes_whole_tensors(o_.optimizer.kind))
      refuse(fmt::format("--optimizer {} updates on the GPU alone; use adamw",
                         name_in(optimizers, o_.optimizer.kind)));
    if (setup_.config.lora.rank > 0)
      refuse("weights that are not trained stay on the GPU; leave out the adapters or offload-all");
    if (asked_.count(Residency::device) + asked_.count(Residency::host) < setup_.config.n_layer)
      refuse("beside blocks that are offload-all the others are resident");
  }

  const char* why_inputs_stay() const {
    if (setup_.trainer.graphs) return "with --cuda-graph inputs stay on the GPU; use block";
    if (setup_.pipeline) return "in a pipeline inputs are in host memory by --stash input:SIZE";
    if (!profile_.gpu)
      return "this run computes on the CPU, where all is in host memory; use block";
    return "how fast this GPU copies from and to host memory could not be measured; use block";
  }

  const TrainConfig& o_;
  const RunSetup& setup_;
  const DeviceProfile& profile_;
  PlacementRequest asked_;
};

/// Refuses --state-home where the CPU cannot update the state.
void require_state_home(const TrainConfig& o, const DeviceProfile& profile) {
  if (o.memory.state_home.empty()) return;
  const auto refuse = [&](const std::string& why) {
    fail(fmt::format("--state-home {}: {}", o.memory.state_home, why), ErrorKind::usage);
  };
  if (adafactor(o)) refuse("with --optimizer adafactor state is small and stays in memory");
  if (o.optimizer.kind == OptimizerKind::muon && profile.gpu)
    refuse("the CPU would update the state, and --optimizer muon updates on the GPU alone");
}

/// Refuses --cuda-graph where a pass is not the same in every step, or waits within.
void require_graphs(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile,
                    bool offloads) {
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
  if (offloads)
    fail(fmt::format("--cuda-graph needs all state on the GPU, and --placement is {}; leave one of "
                     "them out",
                     o.memory.placement),
         ErrorKind::usage);
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
         (!o.parallel.pipeline || o.parallel.layer_major()) && !divides_state(o) &&
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
  const PlacementRules placement(o, setup, profile);
  require_state_home(o, profile);
  require_graphs(o, setup, profile, placement.offloads());
  placement.require();
}

}  // namespace sluice
