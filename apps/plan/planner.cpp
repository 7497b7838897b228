#include "apps/plan/planner.h"

#include <algorithm>
#include <span>
#include <vector>

#include "apps/plan/memory_flags.h"
#include "apps/plan/placement_solver.h"
#include "apps/plan/refusal.h"

namespace sluice {
namespace {

/// The run as a layer-major pipeline, in which weights and gradients can be offloaded too.
struct LayerMajor {
  LayerMajor(const TrainConfig& o, const RunSetup& run, const StatePrecision& precision,
             std::int64_t rows)
      : options(as_layer_major(o, rows)), setup(run) {
    options.memory.state_layout = precision.layout;
    options.memory.gradients = precision.narrow_gradients ? DType::bf16 : DType::f32;
    resolve_memory(options, setup);
  }

  TrainConfig options;
  RunSetup setup;
};

/// True if weights may be offloaded as far as the user says.
bool is_open(const PlacementRequest& asked) {
  return !asked.residency &&
         (!asked.recompute || std::ranges::count(*asked.recompute, Recompute::block_on_host) == 0);
}

class Planner {
 public:
  Planner(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile,
          std::span<const int> ranks)
      : options_(o),
        setup_(setup),
        profile_(profile),
        ranks_(ranks),
        solver_(o, setup, profile, ranks),
        must_offload_(solver_.asked().count(Residency::host) > 0 && !o.parallel.pipeline),
        may_offload_(must_offload_ || (is_open(solver_.asked()) && !o.parallel.pipeline &&
                                       can_offload_weights(o, setup, profile))) {}

  Attempt attempt() {
    for (const StatePrecision& precision : precisions())
      if (auto best = best_of(precision, false)) return {.plan = std::move(best)};
    return {.nearest = solver_.nearest().value_or(MemoryChoice()), .excess = solver_.excess()};
  }

  Planned plan() {
    std::optional<Plan> chosen;
    Planned planned;
    for (const StatePrecision& precision : precisions()) {
      auto best = best_of(precision, !chosen);
      if (!best) continue;
      if (chosen)
        planned.others.push_back(std::move(*best));
      else
        chosen = std::move(best);
      if (planned.others.size() == 3) break;
    }
    if (!chosen) refuse();
    planned.chosen = std::move(*chosen);
    std::ranges::sort(planned.others, {}, [](const Plan& plan) { return plan.time.total(); });
    return planned;
  }

 private:
  std::vector<StatePrecision> precisions() const {
    return precision_candidates(options_, setup_.precision.dtype);
  }

  std::optional<Plan> best_of(const StatePrecision& precision, bool offload_weights) {
    std::optional<Plan> best;
    if (!must_offload_) best = solver_.best(precision);
    if (!best && may_offload_ && (must_offload_ || (offload_weights && solver_.may_fit(precision))))
      best = with_offloaded_weights(precision);
    return best;
  }

  /// Plans with the largest micro-batch that fits, since weights are copied for each step and not
  /// for each micro-batch. A small one, which still is quick to count, is tried first: if it is far
  /// from fitting, so are all.
  std::optional<Plan> with_offloaded_weights(const StatePrecision& precision) {
    constexpr std::int64_t most_tokens = 1 << 14, few_micro_batches = 16;
    std::optional<std::size_t> excess;
    const auto with = [&](std::int64_t rows) {
      const LayerMajor run(options_, setup_, precision, rows);
      PlacementSolver solver(run.options, run.setup, profile_, ranks_);
      std::optional<Plan> best = solver.best(precision, 1);
      if (!best) excess = solver.excess();
      if (!best && (!nearest_ || solver.excess() < nearest_->excess))
        nearest_ = {.precision = precision, .rows = rows, .excess = solver.excess()};
      return best;
    };
    std::vector<std::int64_t> sizes = micro_batches(options_, setup_, profile_.gpu);
    const std::int64_t least = sizes.back();
    std::erase_if(sizes, [&](std::int64_t rows) {
      return rows != least && rows * setup_.trainer.seq_len > most_tokens;
    });
    const auto quick = std::ranges::find_if(sizes.rbegin(), sizes.rend(), [&](std::int64_t rows) {
      return rows * few_micro_batches >= options_.batch_share();
    });
    const std::int64_t small = quick != sizes.rend() ? *quick : sizes.front();
    std::optional<Plan> found = with(small);
    if (!found && *excess > solver_.budgets().device_allowed / 16) return {};
    for (const std::int64_t rows : sizes) {
      if (rows == small) {
        if (found) return found;
      } else if (auto best = with(rows)) {
        return best;
      }
    }
    return found;
  }

  [[noreturn]] void refuse() {
    if (nearest_ && (!solver_.nearest() || nearest_->excess < solver_.excess())) {
      const LayerMajor run(options_, setup_, nearest_->precision, nearest_->rows);
      PlacementSolver solver(run.options, run.setup, profile_, ranks_);
      solver.best(nearest_->precision, 1);
      refuse_nearest(solver);
    }
    refuse_nearest(solver_);
  }

  [[noreturn]] void refuse_nearest(const PlacementSolver& solver) const {
    std::string other;
    if (fixes_memory(options_)) {
      const TrainConfig freed = without_memory_flags(options_);
      if (const auto plan = try_plan(freed, setup_, profile_, ranks_).plan)
        other = to_flags(plan->choice);
    }
    const MemoryChoice& nearest = *solver.nearest();
    refuse_plan(options_, setup_, nearest, solver.count(nearest), solver.budgets(), profile_,
                other);
  }

  struct Nearest {
    StatePrecision precision;
    std::int64_t rows;
    std::size_t excess;  ///< bytes
  };

  const TrainConfig& options_;
  const RunSetup& setup_;
  const DeviceProfile& profile_;
  std::span<const int> ranks_;
  PlacementSolver solver_;
  bool must_offload_, may_offload_;   ///< weights of blocks, in a pipeline that nobody asked for
  std::optional<Nearest> nearest_{};  ///< of those with offloaded weights
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
