#include "apps/train/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "apps/train/memory_wishes.h"
#include "apps/train/plan_candidates.h"
#include "apps/train/progress.h"
#include "apps/train/sizes.h"
#include "apps/train/state_forms.h"
#include "apps/train/state_need.h"
#include "apps/train/state_shares.h"

namespace sluice {
namespace {

class Planner {
 public:
  Planner(const TrainOptions& o, const RunSetup& setup, const DeviceProfile& profile,
          std::span<const int> ranks)
      : o_(o),
        setup_(setup),
        profile_(profile),
        ranks_(ranks),
        layers_(setup.config.n_layer),
        budgets_(budgets_of(o, profile)),
        shares_(o, setup, profile, budgets_) {
    require_memory_wishes(o, setup, profile);
  }

  Attempt attempt() {
    for (const StateForm& form : state_forms(o_, setup_.precision.dtype))
      if (auto best = best_staged(form)) return {.plan = std::move(best)};
    return {.nearest = *nearest_, .excess = nearest_excess_};
  }

  Planned plan() {
    Planned planned;
    for (const StateForm& form : state_forms(o_, setup_.precision.dtype)) {
      auto best = best_staged(form);
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
  struct StagedForm : StateForm {
    Staging staging{};
  };

  MemoryChoice choice_of(const StagedForm& form, std::int64_t resident, std::int64_t cpu = 0,
                         std::int64_t speculative = 0) const {
    MemoryChoice choice{
        .recompute = std::vector(static_cast<std::size_t>(layers_), Recompute::none),
        .layout = form.layout,
        .narrow_gradients = form.narrow_gradients,
        .resident_blocks = resident,
        .cpu_blocks = cpu,
        .speculative_blocks = speculative,
        .staging = form.staging};
    return choice;
  }

  /// Of the rank with most of it, each for itself.
  Need state_at(const StagedForm& form, std::int64_t resident, std::int64_t cpu = 0,
                std::int64_t speculative = 0) const {
    const MemoryChoice choice = choice_of(form, resident, cpu, speculative);
    Need most;
    for (const int rank : ranks_) {
      const MemoryPlan plan = plan_state(o_, setup_, choice, profile_.workspace, rank);
      most.device = std::max(most.device, plan.high_water);
      most.host = std::max(most.host, plan.host);
    }
    return most;
  }

  /// Of the rank with most to hold.
  MemoryPlan counted(const MemoryChoice& choice) const {
    std::optional<MemoryPlan> most;
    for (const int rank : ranks_) {
      const MemoryPlan plan = plan_memory(o_, setup_, choice, profile_.workspace, rank);
      if (!most || plan.high_water > most->high_water) most = plan;
    }
    return *most;
  }

  StateNeed state_need(const StagedForm& form) const {
    StateNeed need;
    need.all = state_at(form, layers_);
    if (!can_stream()) return need;
    need.none = state_at(form, 0);
    need.one = layers_ > 1 ? state_at(form, 1) : need.all;
    if (shares_.speculates()) {
      const Need all = state_at(form, 0, 0, layers_);
      need.guess = all.device - need.none.device;
      need.second = (all.host - need.none.host) / static_cast<std::size_t>(layers_);
    }
    if (!shares_.uses_cpu()) return need;
    const Need shared = state_at(form, 0, layers_);
    need.desk = shared.host - need.none.host;
    need.ring = need.none.device - shared.device;
    return need;
  }

  bool can_stream() const { return sluice::can_stream(o_, profile_); }

  std::int64_t least_resident() const {
    if (!can_stream()) return layers_;
    return std::min(o_.resident_blocks.value_or(0), layers_);
  }
  std::int64_t most_resident(const Staging& staging) const {
    if (o_.resident_blocks) return least_resident();
    if (o_.offload == "all") return 0;
    // Where nothing streams, other stagings are none.
    const std::int64_t most = layers_ - o_.cpu_blocks.value_or(0);
    return staging == stagings(o_, can_stream()).front() ? most : std::min(most, layers_ - 1);
  }

  /// Of one update's passage beside what is held between updates.
  Need passing(std::int64_t micro_batch, const std::vector<Recompute>& list) const {
    MemoryChoice choice = choice_of({{StateLayout::fp32, false}}, layers_);
    choice.micro_batch = micro_batch;
    choice.recompute = list;
    Need most;
    for (const int rank : ranks_) {
      const MemoryPlan all = plan_memory(o_, setup_, choice, profile_.workspace, rank);
      const MemoryPlan state = plan_state(o_, setup_, choice, profile_.workspace, rank);
      most.device = std::max(most.device, all.high_water - state.high_water);
      most.host = std::max(most.host, all.host - state.host);
    }
    return most;
  }

  /// The same from memory: of a list that flags have fixed as it is; of many lists of two modes,
  /// between what either alone takes.
  Need transient(std::int64_t micro_batch, const std::vector<Recompute>& list) {
    const auto known = [&](const std::vector<Recompute>& modes) {
      const auto [entry, fresh] = transients_.try_emplace({micro_batch, to_string(modes)});
      if (fresh) entry->second = passing(micro_batch, modes);
      return entry->second;
    };
    if (o_.recompute != "auto") return known(list);
    double device = 0, host = 0;
    for (const Recompute mode : recompute_modes) {
      const auto share =
          static_cast<double>(std::ranges::count(list, mode)) / static_cast<double>(list.size());
      if (share == 0) continue;
      const Need need = known(std::vector(list.size(), mode));
      device += static_cast<double>(need.device) * share;
      host += static_cast<double>(need.host) * share;
    }
    return {static_cast<std::size_t>(device), static_cast<std::size_t>(host)};
  }

  /// By the predicted seconds of a step.
  using Estimates = std::multimap<double, MemoryChoice>;

  /// Every way that would fit if the device had `slack` bytes more, fastest first. Estimates add up
  /// what is counted apart, and lie between for layers of two modes.
  Estimates estimates_of(const StagedForm& form, const StateNeed& state, std::size_t slack) {
    Estimates estimates;
    for (const std::int64_t micro_batch : micro_batches(o_, setup_, profile_.gpu)) {
      for (const auto& list : recompute_lists(o_, layers_, can_rest_inputs(setup_, profile_))) {
        const Need passing = transient(micro_batch, list);
        MemoryChoice choice = choice_of(form, most_resident(form.staging));
        choice.micro_batch = micro_batch;
        choice.recompute = list;
        add_fitting(estimates, choice, passing, state, slack);
      }
    }
    return estimates;
  }

  /// With the most blocks whose state fits on the device, since nothing is faster; and, where that
  /// needs the CPU to update all others, with fewer as well.
  void add_fitting(Estimates& estimates, MemoryChoice choice, const Need& passing,
                   const StateNeed& state, std::size_t slack) {
    bool forced = false;
    for (auto& resident = choice.resident_blocks; resident >= least_resident(); --resident) {
      const auto holds = [&] {
        const Need need =
            state.with(resident, choice.cpu_blocks, choice.speculative_blocks, layers_) + passing;
        note(choice, need);
        return excess(need) <= slack && host_holds(need.host);
      };
      const auto fits = [&](std::int64_t cpu) {
        choice.cpu_blocks = cpu;
        choice.speculative_blocks = 0;
        choice.speculative_blocks = shares_.still_speculative(choice);
        if (!holds()) return false;
        choice.speculative_blocks = shares_.speculative_blocks(choice, passing, state);
        if (!holds()) choice.speculative_blocks = 0;
        return true;
      };
      const std::int64_t least = o_.cpu_blocks.value_or(0), away = layers_ - resident;
      const bool without_desk = fits(least);
      const bool without_ring = shares_.may_do_without_ring() && fits(away);
      if (!without_desk && !without_ring) continue;
      const bool best = fits(shares_.cpu_blocks(choice, passing, state));
      if (!best) fits(without_desk ? least : away);
      if (best || without_desk || !forced)
        estimates.emplace(shares_.time_of(choice, state).total(), choice);
      if (best || without_desk) return;
      forced = true;
    }
  }

  /// What takes less than a choice that was found to take too much.
  std::optional<MemoryChoice> lesser(MemoryChoice choice, const Need& need,
                                     const StateNeed& state) const {
    const bool free = !o_.cpu_blocks && shares_.uses_cpu();
    const bool ring = choice.cpu_blocks < layers_ - choice.resident_blocks;
    if (!host_holds(need.host)) {  // with fewer blocks resident the host would hold more still
      if (shares_.may_stop_speculating(choice))
        choice.speculative_blocks = 0;
      else if (free && choice.cpu_blocks > 0)
        choice.cpu_blocks = 0;
      else
        return {};
    } else if (choice.resident_blocks > least_resident()) {
      --choice.resident_blocks;
      if (free && !ring && choice.cpu_blocks > 0) ++choice.cpu_blocks;
    } else if (shares_.may_do_without_ring() && ring && host_holds(need.host + state.desk)) {
      choice.cpu_blocks = layers_ - choice.resident_blocks;
    } else if (shares_.may_stop_speculating(choice)) {
      choice.speculative_blocks = 0;
    } else {
      return {};
    }
    choice.speculative_blocks = shares_.still_speculative(choice);
    return choice;
  }

  /// The fastest of all stagings. What small ones cost is not in the model of a step's time, so
  /// they have to be faster by something.
  std::optional<Plan> best_staged(const StateForm& form) {
    constexpr double something = 0.98;
    std::optional<Plan> best;
    for (const Staging& staging : stagings(o_, can_stream())) {
      const auto beats = [&](double seconds) {
        return !best || seconds < something * best->time.total();
      };
      if (auto faster = best_of({{form}, staging}, beats)) best = std::move(faster);
    }
    return best;
  }

  /// The fastest that the count of the whole says fits, of those of which beats(seconds) is true.
  template <class Beats>
  std::optional<Plan> best_of(const StagedForm& form, Beats&& beats) {
    const StateNeed state = state_need(form);
    // What an estimate says is a little too much may fit; but there may be more of that than
    // anybody wants to count, and then what fits by the estimate has its turn.
    struct Round {
      std::size_t slack;
      int tries;
    };
    for (auto [slack, tries] : {Round{budgets_.device_allowed / 64, 48}, Round{0, 12}}) {
      Estimates left = estimates_of(form, state, slack);
      for (; tries > 0 && !left.empty() && beats(left.begin()->first); --tries) {
        MemoryChoice choice = left.extract(left.begin()).mapped();
        const MemoryPlan memory = counted(choice);
        const Need need{memory.high_water, memory.host};
        if (excess(need) == 0)
          return Plan{choice, memory, shares_.time_of(choice, state),
                      budgets_.host_allowed - budgets_.host_reserve - need.host};
        note(choice, need);
        if (const auto less = lesser(choice, need, state))
          left.emplace(shares_.time_of(*less, state).total(), *less);
      }
    }
    return {};
  }

  bool host_holds(std::size_t bytes) const {
    return bytes + budgets_.host_reserve <= budgets_.host_allowed;
  }
  std::size_t device_excess(std::size_t bytes) const {
    const std::size_t all = bytes + budgets_.device_reserve;
    return all > budgets_.device_allowed ? all - budgets_.device_allowed : 0;
  }
  std::size_t host_excess(std::size_t bytes) const {
    return host_holds(bytes) ? 0 : bytes + budgets_.host_reserve - budgets_.host_allowed;
  }
  std::size_t excess(const Need& need) const {
    return device_excess(need.device) + host_excess(need.host);
  }

  /// Remembers what came nearest to fitting.
  void note(const MemoryChoice& choice, const Need& need) {
    if (nearest_ && excess(need) >= nearest_excess_) return;
    nearest_excess_ = excess(need);
    nearest_ = choice;
  }

  [[noreturn]] void refuse() {
    const MemoryChoice& choice = *nearest_;
    const MemoryPlan memory = counted(choice);
    const std::size_t device = memory.high_water + budgets_.device_reserve;
    const std::size_t host = memory.host + budgets_.host_reserve;
    const char* flag = profile_.gpu ? "--gpu-memory" : "--host-memory";
    std::string text =
        fmt::format("the nearest that training comes to fitting is {}: ", to_flags(choice));
    const std::size_t device_over = device_excess(memory.high_water);
    const std::size_t host_over = host_excess(memory.host);
    if (device_over > 0)
      text += fmt::format("{} bytes of {} memory ({}), {} too many; {} {} would do",
                          memory.high_water, profile_.gpu ? "GPU" : "host", to_text(memory.by_use),
                          device_over, flag, spell_bytes(device));
    if (host_over > 0)
      text += fmt::format(
          "{}{} bytes of host memory beside the process, {} too many; --host-memory {} "
          "would do",
          device_over > 0 ? "; and " : "", memory.host, host_over, spell_bytes(host));
    if (const auto other = without_flags()) text += "; in the budget as it is: " + *other;
    fail(text, ErrorKind::usage);
  }

  /// What fits once the planner may choose all that flags have fixed.
  std::optional<std::string> without_flags() const {
    if (!fixes_memory(o_)) return {};
    try {
      return to_flags(plan_run(without_memory_flags(o_), setup_, profile_).chosen.choice);
    } catch (const Error&) {
      return {};
    }
  }

  const TrainOptions& o_;
  const RunSetup& setup_;
  const DeviceProfile& profile_;
  std::span<const int> ranks_;  ///< whose memory counts
  std::int64_t layers_;
  Budgets budgets_;
  StateShares shares_;
  std::map<std::pair<std::int64_t, std::string>, Need> transients_;
  std::optional<MemoryChoice> nearest_;
  std::size_t nearest_excess_ = 0;
};

}  // namespace

Planned plan_run(const TrainOptions& options, const RunSetup& setup, const DeviceProfile& profile) {
  constexpr int first[] = {0};
  return Planner(options, setup, profile, first).plan();
}

Attempt try_plan(const TrainOptions& options, const RunSetup& setup, const DeviceProfile& profile,
                 std::span<const int> ranks) {
  return Planner(options, setup, profile, ranks).attempt();
}

}  // namespace sluice
