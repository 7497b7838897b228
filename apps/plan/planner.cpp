#include "apps/plan/planner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <tuple>

#include "apps/plan/memory_counter.h"
#include "apps/plan/memory_flags.h"
#include "apps/plan/plan_candidates.h"
#include "apps/plan/refusal.h"
#include "apps/plan/update_placement.h"

namespace sluice {
namespace {

class Planner {
 public:
  Planner(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile,
          std::span<const int> ranks)
      : options_(o),
        setup_(setup),
        profile_(profile),
        counter_(o, setup, profile, ranks),
        layers_(setup.config.n_layer),
        budgets_(budgets_of(o.memory, o.parallel, profile)),
        placement_(o, setup, profile, budgets_) {
    validate_memory_flags(o, setup, profile);
  }

  Attempt attempt() {
    for (const StatePrecision& precision : precision_candidates(options_, setup_.precision.dtype))
      if (auto best = best_placed(precision)) return {.plan = std::move(best)};
    return {.nearest = *nearest_, .excess = nearest_excess_};
  }

  Planned plan() {
    Planned planned;
    for (const StatePrecision& precision : precision_candidates(options_, setup_.precision.dtype)) {
      auto best = best_placed(precision);
      if (!best) continue;
      if (planned.chosen.choice.recompute.empty())
        planned.chosen = std::move(*best);
      else
        planned.others.push_back(std::move(*best));
      if (planned.others.size() == 3) break;
    }
    if (planned.chosen.choice.recompute.empty()) refuse();
    std::ranges::sort(planned.others, {}, [](const Plan& plan) { return plan.time.total(); });
    return planned;
  }

 private:
  struct StagedPrecision : StatePrecision {
    Staging staging{};
  };

  MemoryChoice choice_of(const StagedPrecision& precision, std::int64_t resident,
                         std::int64_t cpu = 0, std::int64_t speculative = 0) const {
    MemoryChoice choice{
        .head_chunk = options_.memory.head_chunk.value_or(MemoryChoice().head_chunk),
        .recompute = std::vector(static_cast<std::size_t>(layers_), Recompute::none),
        .layout = precision.layout,
        .narrow_gradients = precision.narrow_gradients,
        .resident_blocks = std::min(resident, layers_ - host_blocks_),
        .host_blocks = host_blocks_,
        .cpu_tables = cpu_tables_,
        .speculative_blocks = speculative,
        .staging = precision.staging};
    choice.cpu_blocks = placement_.by_cpu(choice, cpu);
    return choice;
  }

  MemoryBytes state_at(const StagedPrecision& precision, std::int64_t resident,
                       std::int64_t cpu = 0, std::int64_t speculative = 0) {
    return counter_.state(choice_of(precision, resident, cpu, speculative));
  }

  StateMemory state_memory(const StagedPrecision& precision) {
    StateMemory need;
    need.all = state_at(precision, layers_);
    if (options_.parallel.zero > 1)
      need.gradients = counter_.gradients(choice_of(precision, layers_));
    if (!can_stream()) return need;
    need.none = state_at(precision, 0);
    need.one = layers_ > 1 ? state_at(precision, 1) : need.all;
    if (placement_.speculates()) {
      const MemoryBytes all = state_at(precision, 0, 0, layers_);
      need.speculation = all.device - need.none.device;
      need.backup = (all.host - need.none.host) / static_cast<std::size_t>(layers_);
    }
    if (!placement_.uses_cpu()) return need;
    const MemoryBytes shared = state_at(precision, 0, layers_);
    need.staging = shared.host - need.none.host;
    need.ring = need.none.device - shared.device;
    return need;
  }

  /// If weights rest in host memory, the state of all other blocks stays on the device.
  bool can_stream() const { return host_blocks_ == 0 && sluice::can_stream(options_, profile_); }

  std::int64_t least_resident() const {
    if (!can_stream()) return layers_ - host_blocks_;
    return std::min(options_.memory.resident_blocks.value_or(0), layers_);
  }
  std::int64_t max_resident(const Staging& staging) const {
    if (options_.memory.resident_blocks) return least_resident();
    if (options_.memory.offload == Offload::all) return 0;
    // If nothing streams, all stagings are alike. So only the first may keep all blocks on the
    // device.
    const std::int64_t most = layers_ - host_blocks_ - options_.memory.cpu_blocks.value_or(0);
    return staging == stagings(options_, can_stream()).front() ? most : std::min(most, layers_ - 1);
  }

  /// Returns the temporary memory of one update. For a list of two modes it interpolates between
  /// the counts of each mode alone, unless flags fix the list.
  MemoryBytes transient(std::int64_t micro_batch, const std::vector<Recompute>& list) {
    const auto counted = [&](const std::vector<Recompute>& modes) {
      MemoryChoice choice = choice_of({{StateLayout::fp32, false}}, layers_);
      choice.micro_batch = micro_batch;
      choice.recompute = modes;
      return counter_.transient(choice);
    };
    if (options_.memory.recompute) return counted(list);
    double device = 0, host = 0;
    for (const Recompute mode : recompute_modes) {
      const auto share =
          static_cast<double>(std::ranges::count(list, mode)) / static_cast<double>(list.size());
      if (share == 0) continue;
      const MemoryBytes need = counted(std::vector(list.size(), mode));
      device += static_cast<double>(need.device) * share;
      host += static_cast<double>(need.host) * share;
    }
    return {static_cast<std::size_t>(device), static_cast<std::size_t>(host)};
  }

  struct Estimate {
    MemoryChoice choice;
    std::optional<MemoryPlan> memory{};  ///< none: not counted yet
  };
  /// Maps the predicted seconds of a step to the choice.
  using Estimates = std::multimap<double, Estimate>;

  /// Returns every choice that would fit if the device had `slack` bytes more, fastest first.
  /// Estimates add up parts that were counted separately, and interpolate for layers of two modes.
  Estimates estimates_of(const StagedPrecision& precision, const StateMemory& state,
                         std::size_t slack) {
    Estimates estimates;
    for (const std::int64_t micro_batch : micro_batches(options_, setup_, profile_.gpu)) {
      for (const auto& list :
           recompute_lists(options_, layers_, can_rest_inputs(setup_, profile_))) {
        const MemoryBytes beyond_state = transient(micro_batch, list);
        MemoryChoice choice = choice_of(precision, max_resident(precision.staging));
        choice.micro_batch = micro_batch;
        choice.recompute = list;
        add_fitting(estimates, choice, beyond_state, state, slack);
      }
    }
    return estimates;
  }

  /// Adds the choice with the most resident blocks that fits, since nothing is faster. If it fits
  /// only when the CPU updates all other blocks, also adds a choice with fewer resident blocks.
  void add_fitting(Estimates& estimates, MemoryChoice choice, const MemoryBytes& beyond_state,
                   const StateMemory& state, std::size_t slack) {
    const auto fits = [&](const MemoryChoice& tried) {
      const MemoryBytes need =
          state.bytes_for(tried.resident_blocks + tried.host_blocks, tried.cpu_blocks,
                          tried.speculative_blocks, layers_) +
          beyond_state;
      note(tried, need);
      return budgets_.excess(need) <= slack && host_holds(need.host);
    };
    // Returns `choice` with so many CPU blocks; none if it does not fit.
    const auto with_cpu_blocks = [&](std::int64_t blocks) -> std::optional<MemoryChoice> {
      MemoryChoice least = choice;
      least.cpu_blocks = placement_.by_cpu(least, blocks);
      least.speculative_blocks = placement_.still_speculative(least);
      if (!fits(least)) return {};
      MemoryChoice fastest = least;
      fastest.speculative_blocks = placement_.speculative_blocks(least, beyond_state, state);
      return fits(fastest) ? fastest : least;
    };
    bool found = false;
    for (auto& resident = choice.resident_blocks; resident >= least_resident(); --resident) {
      const auto fewest = with_cpu_blocks(options_.memory.cpu_blocks.value_or(0));
      const auto all =
          placement_.may_do_without_ring() ? with_cpu_blocks(layers_ - resident) : std::nullopt;
      if (!fewest && !all) continue;
      const auto best = with_cpu_blocks(placement_.cpu_blocks(choice, beyond_state, state));
      const bool forced = !best && !fewest;
      if (forced && found) continue;
      const MemoryChoice& fitting = best ? *best : fewest ? *fewest : *all;
      estimates.emplace(placement_.time_of(fitting, state).total(), Estimate{fitting});
      if (!forced) return;
      found = true;
    }
  }

  /// Returns `choice` with so many resident blocks, and counts its memory.
  Estimate with_resident(MemoryChoice choice, std::int64_t resident) {
    const bool ring = choice.cpu_blocks < layers_ - choice.resident_blocks;
    if (!options_.memory.cpu_blocks && placement_.uses_cpu() && !ring && choice.cpu_blocks > 0)
      choice.cpu_blocks += choice.resident_blocks - resident;
    choice.resident_blocks = resident;
    choice.cpu_blocks = placement_.by_cpu(choice, choice.cpu_blocks);
    choice.speculative_blocks = placement_.still_speculative(choice);
    Estimate counted{choice, counter_.all(choice)};
    note(choice, bytes_of(*counted.memory));
    return counted;
  }

  /// Removes the fewest resident blocks after which `choice`, which does not fit, fits on the
  /// device or no longer fits into host memory; if no number does, removes all that may go.
  Estimate with_fewer_resident(const MemoryChoice& choice) {
    const auto enough = [&](const Estimate& tried) {
      return budgets_.device_excess(tried.memory->high_water) == 0 ||
             !host_holds(tried.memory->host);
    };
    std::int64_t too_many = choice.resident_blocks, step = 1;
    const auto next = [&] { return std::max(least_resident(), choice.resident_blocks - step); };
    Estimate less = with_resident(choice, next());
    while (!enough(less) && less.choice.resident_blocks > least_resident()) {
      too_many = less.choice.resident_blocks;
      step *= 2;
      less = with_resident(choice, next());
    }
    while (enough(less) && too_many - less.choice.resident_blocks > 1) {
      const std::int64_t middle = (too_many + less.choice.resident_blocks) / 2;
      if (Estimate tried = with_resident(choice, middle); enough(tried))
        less = std::move(tried);
      else
        too_many = middle;
    }
    return less;
  }

  /// Returns a choice that needs less memory than `choice`, which did not fit; may return none.
  std::optional<Estimate> lesser(MemoryChoice choice, const MemoryBytes& need,
                                 const StateMemory& state) {
    const bool free = !options_.memory.cpu_blocks && placement_.uses_cpu();
    const bool ring = choice.cpu_blocks < layers_ - choice.resident_blocks;
    if (!host_holds(need.host)) {  // fewer resident blocks would need still more host memory
      if (placement_.may_stop_speculating(choice))
        choice.speculative_blocks = 0;
      else if (free && choice.cpu_blocks > 0)
        choice.cpu_blocks = 0;
      else
        return {};
    } else if (choice.resident_blocks > least_resident()) {
      return with_fewer_resident(choice);
    } else if (placement_.may_do_without_ring() && ring && host_holds(need.host + state.staging)) {
      choice.cpu_blocks = layers_ - choice.resident_blocks;
    } else if (placement_.may_stop_speculating(choice)) {
      choice.speculative_blocks = 0;
    } else {
      return {};
    }
    choice.speculative_blocks = placement_.still_speculative(choice);
    return Estimate{choice};
  }

  /// Returns a plan that takes as little of the host as possible: the fewest blocks' weights leave
  /// the device, and if all do not suffice, the tables' state too.
  std::optional<Plan> best_placed(const StatePrecision& precision) {
    const auto with = [&](std::int64_t away) {
      host_blocks_ = std::min(away, layers_);
      cpu_tables_ = options_.memory.cpu_tables || away > layers_;
      return best_staged(precision);
    };
    std::optional<Plan> best =
        with(options_.memory.host_blocks.value_or(options_.memory.cpu_tables ? 1 : 0));
    if (best || options_.memory.host_blocks || !can_rest_weights(options_, profile_)) return best;
    const auto before = std::tuple(budgets_, nearest_, nearest_excess_);
    budgets_.host_allowed = std::numeric_limits<std::size_t>::max();
    std::int64_t too_few = 0, enough = layers_ + 1;
    while (enough - too_few > 1) {
      const std::int64_t middle = (too_few + enough) / 2;
      (with(middle) ? enough : too_few) = middle;
    }
    std::tie(budgets_, nearest_, nearest_excess_) = before;
    return with(enough);
  }

  /// Returns the fastest plan over all stagings. The cost model ignores what small stagings cost,
  /// so they have to be faster by a margin.
  std::optional<Plan> best_staged(const StatePrecision& precision) {
    constexpr double something = 0.98;
    std::optional<Plan> best;
    for (const Staging& staging : stagings(options_, can_stream())) {
      const auto beats = [&](double seconds) {
        return !best || seconds < something * best->time.total();
      };
      if (auto faster = best_of({{precision}, staging}, beats)) best = std::move(faster);
    }
    return best;
  }

  /// A CPU gains little from larger chunks. Ranks with different parts of the model may have less
  /// memory left than the one that is counted.
  bool may_widen_head() const {
    const ParallelConfig& c = options_.parallel;
    const bool alike = !c.pipelined() && c.tp == 1 && (c.zero == 0 || c.mesh().dp == 1);
    return profile_.gpu && !options_.memory.head_chunk && alike;
  }

  /// Returns the plan with the largest chunk of the vocabulary head that fits beside everything
  /// else.
  Plan with_wide_head(Plan plan, const StateMemory& state) const {
    const std::int64_t tokens = plan.choice.micro_batch * setup_.trainer.seq_len;
    for (std::int64_t chunk = 8192; chunk > plan.choice.head_chunk && may_widen_head();
         chunk /= 2) {
      if (chunk / 2 >= tokens) continue;  // half of it is no less
      MemoryChoice choice = plan.choice;
      choice.head_chunk = chunk;
      if (const MemoryPlan memory = counter_.all(choice); budgets_.excess(bytes_of(memory)) == 0)
        return plan_of(choice, memory, state);
    }
    return plan;
  }

  Plan plan_of(const MemoryChoice& choice, const MemoryPlan& memory,
               const StateMemory& state) const {
    return {choice, memory, placement_.time_of(choice, state),
            budgets_.host_allowed - budgets_.host_reserve - memory.host};
  }

  /// Returns the fastest choice that fits by a full count and for which beats(seconds) is true.
  template <class Beats>
  std::optional<Plan> best_of(const StagedPrecision& precision, Beats&& beats) {
    const StateMemory state = state_memory(precision);
    // The first round also counts choices whose estimate is slightly too large, since they may fit.
    // If these are too many to count in reasonable time, the second round counts only those whose
    // estimate fits.
    struct Round {
      std::size_t slack;
      int tries;
    };
    for (auto [slack, tries] : {Round{budgets_.device_allowed / 64, 48}, Round{0, 12}}) {
      Estimates left = estimates_of(precision, state, slack);
      for (; tries > 0 && !left.empty() && beats(left.begin()->first); --tries) {
        const Estimate tried = left.extract(left.begin()).mapped();
        const MemoryChoice& choice = tried.choice;
        const MemoryPlan memory = tried.memory ? *tried.memory : counter_.all(choice);
        const MemoryBytes need = bytes_of(memory);
        if (budgets_.excess(need) == 0)
          return with_wide_head(plan_of(choice, memory, state), state);
        note(choice, need);
        if (const auto less = lesser(choice, need, state))
          left.emplace(placement_.time_of(less->choice, state).total(), *less);
      }
    }
    return {};
  }

  bool host_holds(std::size_t bytes) const { return budgets_.host_excess(bytes) == 0; }
  void note(const MemoryChoice& choice, const MemoryBytes& need) {
    if (nearest_ && budgets_.excess(need) >= nearest_excess_) return;
    nearest_excess_ = budgets_.excess(need);
    nearest_ = choice;
  }

  [[noreturn]] void refuse() {
    std::string other;
    if (fixes_memory(options_)) {
      constexpr int first[] = {0};
      const TrainConfig freed = without_memory_flags(options_);
      if (const auto plan = try_plan(freed, setup_, profile_, first).plan)
        other = to_flags(plan->choice);
    }
    refuse_plan(options_, setup_, *nearest_, counter_.all(*nearest_), budgets_, profile_, other);
  }

  const TrainConfig& options_;
  const RunSetup& setup_;
  const DeviceProfile& profile_;
  MemoryCounter counter_;
  std::int64_t layers_;
  std::int64_t host_blocks_ = 0;
  bool cpu_tables_ = false;
  Budgets budgets_;
  UpdatePlacement placement_;
  std::optional<MemoryChoice> nearest_;
  std::size_t nearest_excess_ = 0;
};

}  // namespace

Planned plan_run(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile) {
  constexpr int first[] = {0};
  return Planner(options, setup, profile, first).plan();
}

Attempt try_plan(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile,
                 std::span<const int> ranks) {
  return Planner(options, setup, profile, ranks).attempt();
}

}  // namespace sluice
