#include "apps/plan/placement_solver.h"

#include <algorithm>

#include "apps/plan/memory_flags.h"
#include "apps/plan/plan_time.h"

namespace sluice {
namespace {

/// Returns the fewest blocks, up to `most`, that give the shortest step; 0 if they save less than
/// one percent of it. Assumes that the time first falls and then rises with the number of blocks.
template <class Seconds>
std::int64_t fewest(std::int64_t most, Seconds&& seconds) {
  constexpr double a_little = 0.99;
  std::int64_t least = 0;
  while (least < most) {
    const std::int64_t middle = (least + most) / 2;
    if (seconds(middle) <= seconds(middle + 1))
      most = middle;
    else
      least = middle + 1;
  }
  return least > 0 && seconds(least) < a_little * seconds(0) ? least : 0;
}

}  // namespace

PlacementSolver::PlacementSolver(const TrainConfig& options, const RunSetup& setup,
                                 const DeviceProfile& profile, std::span<const int> ranks)
    : options_(options),
      setup_(setup),
      profile_(profile),
      counter_(options, setup, profile, ranks),
      layers_(setup.config.n_layer),
      budgets_(budgets_of(options.memory, options.parallel, profile)),
      asked_(requested_placement(options, setup)) {
  validate_memory_flags(options, setup, profile);
}

bool PlacementSolver::can_offload_state() const {
  return sluice::can_offload_state(options_, profile_);
}
bool PlacementSolver::can_share_cpu() const {
  return sluice::can_share_cpu(options_, setup_, profile_);
}

/// Returns the choice with the lowest `resident` blocks' state on the device and, of the others,
/// the highest `by_cpu` updated by the CPU.
MemoryChoice PlacementSolver::placed(MemoryChoice choice, std::int64_t resident,
                                     std::int64_t by_cpu) const {
  const std::int64_t here = layers_ - offloaded_weights_;
  resident = std::min(resident, here);
  // State in a file is updated by the CPU.
  if (profile_.gpu && !options_.memory.state_home.empty()) by_cpu = here - resident;
  std::vector<Residency> all(static_cast<std::size_t>(layers_), Residency::host);
  for (std::int64_t layer = 0; layer < here; ++layer)
    all[static_cast<std::size_t>(layer)] = layer < resident        ? Residency::device
                                           : layer < here - by_cpu ? Residency::streamed
                                                                   : Residency::cpu;
  choice.placement.set_residency(all);
  choice.placement.offload_embeddings = offload_embeddings_;
  return choice;
}

MemoryChoice PlacementSolver::choice_of(const StagedPrecision& precision) const {
  return placed({.head_chunk = options_.memory.head_chunk.value_or(MemoryChoice().head_chunk),
                 .layout = precision.layout,
                 .narrow_gradients = precision.narrow_gradients,
                 .staging = precision.staging},
                layers_, 0);
}

StateMemory PlacementSolver::state_memory(const StagedPrecision& precision) {
  const auto with = [&](std::int64_t resident, std::int64_t by_cpu) {
    return counter_.state(placed(choice_of(precision), resident, by_cpu));
  };
  StateMemory need;
  need.all = with(layers_, 0);
  if (options_.parallel.zero > 1) need.gradients = counter_.gradients(choice_of(precision));
  if (!can_offload_state()) return need;
  need.none = with(0, 0);
  need.one = layers_ > 1 ? with(1, 0) : need.all;
  if (!can_share_cpu()) return need;
  const MemoryBytes shared = with(0, layers_);
  need.staging = shared.host - need.none.host;
  need.ring = need.none.device - shared.device;
  return need;
}

/// Returns the temporary memory of one update. For blocks of two modes it interpolates between
/// the counts of each mode alone, unless the user fixes the modes.
MemoryBytes PlacementSolver::transient(const MemoryChoice& like) {
  MemoryChoice choice = choice_of({{StateLayout::fp32, false}});
  choice.micro_batch = like.micro_batch;
  if (asked_.recompute) {
    choice.placement.set_recompute(*asked_.recompute);
    return counter_.transient(choice);
  }
  double device = 0, host = 0;
  for (const Recompute mode : recompute_modes) {
    const double share =
        static_cast<double>(like.placement.count(mode)) / static_cast<double>(layers_);
    if (share == 0) continue;
    choice.placement.set_recompute(mode);
    const MemoryBytes need = counter_.transient(choice);
    device += static_cast<double>(need.device) * share;
    host += static_cast<double>(need.host) * share;
  }
  return {static_cast<std::size_t>(device), static_cast<std::size_t>(host)};
}

double PlacementSolver::seconds_of(const MemoryChoice& choice, const StateMemory& state) const {
  return time_of(options_, setup_, profile_, choice, state).total();
}

/// Returns how many of the blocks with offloaded state the CPU updates: more of them shorten the
/// wait for copies, and lengthen the wait for the CPU.
std::int64_t PlacementSolver::cpu_share(const MemoryChoice& choice, std::int64_t resident,
                                        const StateMemory& state) const {
  if (!can_share_cpu()) return 0;
  return fewest(layers_ - resident, [&](std::int64_t blocks) {
    return seconds_of(placed(choice, resident, blocks), state);
  });
}

/// Returns the choice with as much state on the device as fits, and the others' updates divided
/// between device and CPU; none if nothing fits.
std::optional<PlacementSolver::Estimate> PlacementSolver::with_state(const MemoryChoice& choice,
                                                                     const StateMemory& state) {
  const MemoryBytes beyond_state = transient(choice);
  const auto estimated = [&](MemoryChoice tried, const MemoryBytes& held) {
    const MemoryBytes need = held + beyond_state;
    note(tried, need);
    const double seconds = seconds_of(tried, state);
    return budgets_.excess(need + margin_) == 0
               ? std::optional<Estimate>({std::move(tried), need, seconds})
               : std::nullopt;
  };
  if (asked_.residency) {
    MemoryChoice fixed = choice;
    fixed.placement.set_residency(*asked_.residency);
    return estimated(fixed, counter_.state(without_recompute(fixed)));
  }
  const auto with = [&](std::int64_t resident, std::int64_t by_cpu) {
    MemoryChoice tried = placed(choice, resident, by_cpu);
    const MemoryBytes held = state.bytes_for(resident, tried.count(Residency::cpu), layers_);
    return estimated(std::move(tried), held);
  };
  const std::int64_t least = can_offload_state() ? 0 : layers_;
  std::optional<Estimate> best;
  for (std::int64_t resident = layers_; resident >= least && !best; --resident) {
    best = with(resident, cpu_share(choice, resident, state));
    // Without any share of the CPU there is less in host memory.
    if (!best) best = with(resident, 0);
  }
  // If the CPU updates all of these blocks, no buffers are needed on the device.
  for (std::int64_t resident = layers_; resident >= least && can_share_cpu(); --resident)
    if (auto all = with(resident, layers_ - resident)) {
      if (!best || all->seconds < best->seconds) best = std::move(all);
      break;
    }
  return best;
}

/// Returns the choice with the entry's modes; none if it does not fit.
std::optional<PlacementSolver::Estimate> PlacementSolver::solved(const PlanEntry& entry,
                                                                 MemoryChoice choice,
                                                                 const StateMemory& state) {
  choice.placement.set_recompute(entry.recompute);
  if (asked_.recompute) choice.placement.set_recompute(*asked_.recompute);
  if (!entry.few) return with_state(choice, state);
  std::int64_t too_few = 0, enough = layers_ + 1;
  std::optional<Estimate> found;
  while (enough - too_few > 1) {
    const std::int64_t middle = (too_few + enough) / 2;
    choice.placement.set_recompute(Recompute::gelu_ln);
    for (std::int64_t layer = 0; layer < middle; ++layer)
      choice.placement.blocks[static_cast<std::size_t>(layer)].recompute = entry.recompute;
    if (auto tried = with_state(choice, state)) {
      found = std::move(tried);
      enough = middle;
    } else {
      too_few = middle;
    }
  }
  return found;
}

/// Returns the fastest of the entries that fit by estimates.
std::optional<PlacementSolver::Estimate> PlacementSolver::best_estimate(
    const StagedPrecision& precision, const StateMemory& state) {
  const auto sizes = micro_batches(options_, setup_, profile_.gpu);
  const std::int64_t each = setup_.trainer.seq_len;
  std::optional<Estimate> best;
  for (const PlanEntry& entry : plan_entries(profile_.gpu, can_offload_inputs(setup_, profile_),
                                             asked_.recompute.has_value())) {
    // A batch of fewer tokens than an entry has is enough for it, and one sequence is few.
    const std::int64_t least = std::min(entry.least, sizes.front() * each);
    for (const std::int64_t rows : sizes) {
      const bool within = rows * each >= least && rows * each <= entry.most;
      const bool smallest = rows == sizes.back() && entry.least == 1;
      if (sizes.size() > 1 && !within && !smallest) continue;
      MemoryChoice choice = choice_of(precision);
      choice.micro_batch = rows;
      const auto fitting = solved(entry, choice, state);
      if (!fitting) continue;
      if (!best || fitting->seconds < best->seconds) best = fitting;
      break;
    }
  }
  return best;
}

/// Returns the fastest entry that fits by a full count. Where that count is above the budget, the
/// estimates were too small by as much: the entries are solved again with that much less.
std::optional<Plan> PlacementSolver::best_staged(const StagedPrecision& precision) {
  const StateMemory state = state_memory(precision);
  margin_ = {};
  for (int tries = 0; tries < 8; ++tries) {
    const std::optional<Estimate> best = best_estimate(precision, state);
    if (!best) break;
    const MemoryPlan memory = counter_.all(best->choice);
    const MemoryBytes need = bytes_of(memory);
    if (budgets_.excess(need) == 0)
      return with_wide_head(plan_of(best->choice, memory, state), state);
    note(best->choice, need);
    margin_.device =
        std::max(margin_.device + 1, need.device - std::min(need.device, best->need.device));
    margin_.host = std::max(margin_.host, need.host - std::min(need.host, best->need.host));
  }
  return {};
}

/// Returns the choice with offloaded weights. Nothing is left to solve: one block at a time keeps
/// its activations, so that to recompute some of them would save little.
MemoryChoice PlacementSolver::offloading(const StatePrecision& precision) const {
  MemoryChoice choice = choice_of({precision, stagings(options_, false).front()});
  choice.micro_batch = setup_.trainer.micro_batch;
  if (asked_.residency) choice.placement.set_residency(*asked_.residency);
  if (asked_.recompute) choice.placement.set_recompute(*asked_.recompute);
  return choice;
}

std::optional<Plan> PlacementSolver::with_offloaded_weights(const StatePrecision& precision) {
  const MemoryChoice choice = offloading(precision);
  const MemoryPlan memory = counter_.all(choice);
  note(choice, bytes_of(memory));
  if (budgets_.excess(bytes_of(memory)) > 0) return {};
  StateMemory state;
  state.all = counter_.state(choice);
  return plan_of(choice, memory, state);
}

/// Returns the fastest plan over all stagings. The cost model ignores what small stagings cost,
/// so they have to be faster by a margin.
std::optional<Plan> PlacementSolver::best_of(const StatePrecision& precision) {
  constexpr double something = 0.98;
  std::optional<Plan> best;
  for (const Staging& staging : stagings(options_, can_offload_state()))
    if (auto plan = best_staged({{precision}, staging});
        plan && (!best || plan->time.total() < something * best->time.total()))
      best = std::move(plan);
  return best;
}

std::optional<Plan> PlacementSolver::best(const StatePrecision& precision, std::int64_t least) {
  const auto place = [&](std::int64_t offloaded) {
    offloaded_weights_ = std::min(offloaded, layers_);
    offload_embeddings_ = asked_.offload_embeddings || offloaded > layers_;
  };
  const auto with = [&](std::int64_t offloaded) {
    place(offloaded);
    return offloaded > 0 ? with_offloaded_weights(precision) : best_of(precision);
  };
  least = std::max(least, asked_.count(Residency::host));
  if (std::optional<Plan> best = with(least); best || asked_.residency ||
                                              !options_.parallel.layer_major() ||
                                              !can_offload_weights(options_, setup_, profile_))
    return best;
  // The device's bytes fall by the same number with each block, so two counts give the fewest.
  const auto bytes = [&](std::int64_t offloaded) {
    place(offloaded);
    return counter_.all(offloading(precision)).high_water;
  };
  const auto fits = [&](std::int64_t offloaded) {
    return budgets_.device_excess(bytes(offloaded)) == 0;
  };
  const std::size_t all = bytes(layers_);
  if (layers_ == 1 || budgets_.device_excess(all) > 0) return with(layers_ + 1);
  const std::size_t one = bytes(1);
  const std::size_t each = (one - std::min(one, all)) / static_cast<std::size_t>(layers_ - 1);
  const std::size_t excess = budgets_.device_excess(one);
  std::int64_t enough =
      1 + static_cast<std::int64_t>((excess + each) / std::max<std::size_t>(1, each));
  enough = std::clamp(enough, std::max<std::int64_t>(1, least), layers_);
  while (enough < layers_ && !fits(enough))
    ++enough;
  while (enough > std::max<std::int64_t>(1, least) && fits(enough - 1))
    --enough;
  return with(enough);
}

/// A CPU gains little from larger chunks. Ranks with different parts of the model may have less
/// memory left than the one that is counted.
bool PlacementSolver::may_widen_head() const {
  const ParallelConfig& c = options_.parallel;
  const bool alike = !c.pipelined() && c.tp == 1 && (c.zero == 0 || c.mesh().dp == 1);
  return profile_.gpu && !options_.memory.head_chunk && alike;
}

/// Returns the plan with the largest chunk of the vocabulary head that fits beside everything
/// else.
Plan PlacementSolver::with_wide_head(Plan plan, const StateMemory& state) const {
  const std::int64_t tokens = plan.choice.micro_batch * setup_.trainer.seq_len;
  for (std::int64_t chunk = 8192; chunk > plan.choice.head_chunk && may_widen_head(); chunk /= 2) {
    if (chunk / 2 >= tokens) continue;  // half of it is no less
    MemoryChoice choice = plan.choice;
    choice.head_chunk = chunk;
    if (const MemoryPlan memory = counter_.all(choice); budgets_.excess(bytes_of(memory)) == 0)
      return plan_of(choice, memory, state);
  }
  return plan;
}

Plan PlacementSolver::plan_of(const MemoryChoice& choice, const MemoryPlan& memory,
                              const StateMemory& state) const {
  return {choice, memory, time_of(options_, setup_, profile_, choice, state),
          budgets_.host_allowed - budgets_.host_reserve - memory.host};
}

bool PlacementSolver::may_fit(const StatePrecision& precision) {
  if (!options_.memory.state_home.empty()) return true;
  // A lower bound of a parameter's bytes: weight, gradient and, with AdamW, moments and master
  // weight, of which fp32 weights need no second one. Other rules keep less, which counts as none.
  constexpr double state[] = {8, 8, 6, 4, 2};
  const bool adamw = options_.optimizer.kind == OptimizerKind::adamw;
  const double bytes = static_cast<double>(size_of(setup_.precision.dtype)) +
                       (precision.narrow_gradients ? 2 : 4) +
                       (adamw ? state[static_cast<std::size_t>(precision.layout)] : 0);
  const double held = bytes * trained_parameters(setup_.config, options_.parallel.tp);
  return held <
         static_cast<double>(budgets_.device_allowed) + static_cast<double>(budgets_.host_allowed);
}

void PlacementSolver::note(const MemoryChoice& choice, const MemoryBytes& need) {
  if (nearest_ && budgets_.excess(need) >= nearest_excess_) return;
  nearest_excess_ = budgets_.excess(need);
  nearest_ = choice;
}

}  // namespace sluice
