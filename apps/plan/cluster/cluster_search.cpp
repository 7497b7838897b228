#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>
#include <tuple>

#include "apps/cli/progress.h"
#include "apps/plan/cluster/cluster_plan.h"
#include "apps/plan/memory_flags.h"
#include "apps/plan/plan_candidates.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

/// Up to this number of stages x micro-batches, a plan counts all micro-batches of a pipeline.
constexpr std::int64_t max_counted = 1 << 16;

/// Returns a smaller number of micro-batches that needs nearly the same memory as all: under these
/// schedules a rank holds no more of them at a time, and each further one adds only its token ids.
std::int64_t few_micro_batches(const ParallelConfig& candidate) {
  const bool bounded = candidate.pipeline == ScheduleName::one_forward_one_backward ||
                       candidate.pipeline == ScheduleName::interleaved;
  if (!bounded) return candidate.micro_batches;
  return std::min(candidate.micro_batches,
                  2 * candidate.mesh.pp + candidate.micro_batches % candidate.mesh.pp);
}

/// Returns all micro-batches if they can be counted quickly, else few_micro_batches().
std::int64_t counted_micro_batches(const ParallelConfig& candidate) {
  const bool quick =
      candidate.mesh.pp * candidate.virtual_stages * candidate.micro_batches <= max_counted;
  return quick ? candidate.micro_batches : few_micro_batches(candidate);
}

TrainOptions options_of(const ClusterTask& task, const ParallelConfig& candidate,
                        std::int64_t micro_batches) {
  TrainOptions o = options_of(candidate, task.options);
  o.batch_size = candidate.mesh.dp * candidate.choice.micro_batch * micro_batches;
  o.state_layout = candidate.choice.layout;
  o.gradients = candidate.choice.narrow_gradients ? DType::bf16 : DType::f32;
  return o;
}

RunSetup setup_of(const ClusterTask& task, const TrainOptions& o) {
  RunSetup setup = resolve_shape(o, task.profile.gpu, task.profile.capability, task.profile.name);
  setup.precision = task.precision;
  setup.layouts = task.layouts;
  return setup;
}

/// Returns the ranks whose memory has to be counted. If blocks are divided evenly, the ends of a
/// pipeline need the most: the first stage holds the most micro-batches, the last has the head. Of
/// all shards, shard 0 needs the most.
std::vector<int> counted_ranks(const Mesh& mesh, const TrainOptions& o) {
  std::vector<int> ranks{0};
  for (int place = 1; place < mesh.pp; ++place)
    if (place + 1 == mesh.pp || o.pipeline_split != BlockSplit())
      ranks.push_back(mesh.rank(0, place, 0));
  return ranks;
}

/// Returns the bytes above the budgets, and stores the memory of the fullest rank in `candidate`.
std::size_t count_memory(const ClusterTask& task, ParallelConfig& candidate) {
  const Budgets budgets = budgets_of(task.options, task.profile);
  const TrainOptions o = options_of(task, candidate, counted_micro_batches(candidate));
  const RunSetup setup = setup_of(task, o);
  candidate.memory = {};
  std::size_t most = 0;
  for (const int rank : counted_ranks(candidate.mesh, o)) {
    const MemoryPlan memory =
        plan_memory(o, setup, candidate.choice, task.profile.workspace, {candidate.mesh, rank});
    const std::size_t excess =
        budgets.device_excess(memory.high_water) + budgets.host_excess(memory.host);
    if (memory.high_water > candidate.memory.high_water) candidate.memory = memory;
    most = std::max(most, excess);
  }
  return most;
}

/// Returns the bytes of rank 0's weights and gradients, which stay on the device, if `replicas`
/// divide the gradients.
double weights_and_gradients(const ClusterTask& task, const ParallelConfig& candidate,
                             const RunSetup& setup, int replicas) {
  GPT2 model(task.config, {.size = candidate.mesh.tp});
  double parameters = 0;
  for (const Parameter& parameter :
       setup.pipeline ? model.parameters(setup.pipeline->parts_of(0)) : model.parameters())
    parameters += static_cast<double>(element_count(parameter.shape));
  return parameters * (candidate.choice.gradient_bytes() / replicas +
                       static_cast<double>(size_of(task.precision.dtype)));
}

void add_time(const ClusterTask& task, ParallelConfig& candidate, const TrainOptions& o,
              const RunSetup& setup) {
  MemoryChoice bare = candidate.choice;
  bare.micro_batch = 1;
  std::ranges::fill(bare.recompute, Recompute::none);
  const Mesh replica{.pp = candidate.mesh.pp, .tp = candidate.mesh.tp};
  const MemoryPlan held = plan_state(o, setup, bare, task.profile.workspace, {replica});
  // As in the planner, state is what is held permanently, less weights and gradients.
  const double state =
      static_cast<double>(held.high_water) - weights_and_gradients(task, candidate, setup, 1);
  candidate.time =
      predict_candidate(task, candidate, std::max(0.0, state), static_cast<double>(held.host));
  candidate.tokens_per_second =
      static_cast<double>(task.options.batch_size * task.seq_len) / candidate.time.total();
}

/// Returns the bytes by which the weights and gradients alone exceed the budget. Throws Error
/// (usage) if flags rule the candidate out.
std::size_t least_excess(const ClusterTask& task, const ParallelConfig& candidate) {
  const TrainOptions o = options_of(task, candidate, few_micro_batches(candidate));
  const RunSetup setup = setup_of(task, o);
  validate_memory_flags(o, setup, task.profile);
  const double least =
      weights_and_gradients(task, candidate, setup, candidate.zero > 1 ? candidate.mesh.dp : 1);
  return budgets_of(o, task.profile).device_excess(static_cast<std::size_t>(least));
}

class ClusterPlanner {
 public:
  explicit ClusterPlanner(const ClusterTask& task) : task_(task) {}

  ClusterPlan plan() {
    plan_.meshes = static_cast<std::int64_t>(meshes_of(task_).size());
    require_divisible();
    for (const StatePrecision& form : precision_candidates(task_.options, task_.precision.dtype)) {
      try_form(form);
      if (!best_.empty()) break;
    }
    if (best_.empty()) find_nearest_uncounted();
    if (best_.empty() && !nearest_)
      fail(fmt::format(
               "--gpus {}: {}", task_.gpus,
               why_.empty() ? "no --dp x --pp x --tp of it suits the model and the flags" : why_),
           ErrorKind::usage);
    for (auto& [mesh, candidate] : best_)
      plan_.candidates.push_back(std::move(candidate));
    std::ranges::stable_sort(plan_.candidates, {}, [](const ParallelConfig& candidate) {
      return candidate.time.total();
    });
    if (plan_.candidates.size() > static_cast<std::size_t>(task_.top))
      plan_.candidates.resize(static_cast<std::size_t>(task_.top));
    if (plan_.candidates.empty()) {
      plan_.excess = count_memory(task_, *nearest_);
      plan_.nearest = std::move(nearest_);
    }
    return std::move(plan_);
  }

 private:
  void require_divisible() const {
    const std::int64_t given =
        task_.options.dp.value_or(1) * task_.pp.value_or(1) * task_.tp.value_or(1);
    const std::int64_t rest = task_.gpus / given;
    if (rest * given == task_.gpus) return;
    fail(fmt::format("--gpus {} is not divisible by --dp x --pp x --tp = {}: {} * {} = {}",
                     task_.gpus, given, rest, given, rest * given),
         ErrorKind::usage);
  }

  /// Index of a mesh in the list of meshes_of().
  using Number = std::size_t;

  struct Candidate {
    Number mesh;
    ParallelConfig candidate;
    double bound = 0;  ///< lower bound in seconds: without recompute and without state traffic
  };

  /// Computes the bounds, some on each thread.
  void compute_bounds(std::vector<Candidate>& candidates, std::int64_t threads) const {
    std::vector<std::future<void>> shares;
    for (std::int64_t thread = 0; thread < threads; ++thread)
      shares.push_back(std::async(std::launch::async, [&, thread] {
        for (auto i = static_cast<std::size_t>(thread); i < candidates.size();
             i += static_cast<std::size_t>(threads))
          candidates[i].bound = predict_candidate(task_, candidates[i].candidate, 0, 0).total();
      }));
    for (std::future<void>& share : shares)
      share.get();
  }

  void try_form(const StatePrecision& form) {
    const std::vector<Mesh> meshes = meshes_of(task_);
    std::vector<Candidate> candidates;
    enum class Fate { open, refused, unfit };
    std::vector<Fate> fates(meshes.size(), Fate::refused);
    for (Number mesh = 0; mesh < meshes.size(); ++mesh)
      for (ParallelConfig& candidate : candidates_of(task_, meshes[mesh])) {
        candidate.choice.layout = form.layout;
        candidate.choice.narrow_gradients = form.narrow_gradients;
        candidates.push_back({mesh, std::move(candidate)});
        fates[mesh] = Fate::open;
      }
    const std::int64_t threads =
        task_.options.threads > 0 ? task_.options.threads : cpu::available_cores();
    compute_bounds(candidates, threads);
    if (candidates.empty() && !meshes.empty())
      why_ = fmt::format("--batch-size {} cannot be divided between any of its meshes",
                         task_.options.batch_size);
    std::ranges::stable_sort(candidates, {}, &Candidate::bound);
    too_large_.clear();
    std::vector<std::int64_t> tried(meshes.size(), 0);
    auto next = candidates.begin();
    ProgressBar bar("planning", static_cast<double>(candidates.size()));
    do {
      // Several are tried at once. Results are taken in order, and those are dropped that an
      // earlier one makes needless, so the plan does not depend on the number of threads.
      std::vector<std::pair<const Candidate*, std::future<Trial>>> trials;
      for (; next != candidates.end() && std::ssize(trials) < threads; ++next) {
        if (needless(*next))
          bar.advance(1);
        else
          trials.emplace_back(&*next, std::async(std::launch::async, [this, of = &*next] {
            return trial_of(of->candidate);
          }));
      }
      for (auto& [of, trial] : trials) {
        if (!needless(*of) && take(*of, trial)) ++tried[of->mesh];
        bar.advance(1);
      }
    } while (next != candidates.end());
    plan_.refused = plan_.unfit = plan_.slower = 0;
    const bool ended_early = slowest_wanted() < std::numeric_limits<double>::infinity();
    for (Number mesh = 0; mesh < meshes.size(); ++mesh) {
      if (best_.contains(mesh)) continue;
      const bool all = fates[mesh] == Fate::open && tried[mesh] == 0;
      if (fates[mesh] == Fate::refused)
        ++plan_.refused;
      else if (all && ended_early)
        ++plan_.slower;
      else if (all)
        ++plan_.refused;
      else
        ++plan_.unfit;
    }
  }

  /// Kinds of candidates that differ in the micro-batch alone.
  using Kind = std::tuple<Number, std::optional<ScheduleName>, std::int64_t, std::int64_t>;
  static Kind kind_of(const Candidate& one) {
    return {one.mesh, one.candidate.pipeline, one.candidate.virtual_stages, one.candidate.zero};
  }

  /// Returns true if the candidate cannot be shown, whatever its memory.
  bool needless(const Candidate& one) const {
    if (slowest_wanted() <= one.bound) return true;
    const auto best = best_.find(one.mesh);
    if (best != best_.end() && best->second.time.total() <= one.bound) return true;
    const auto known = too_large_.find(kind_of(one));
    return known != too_large_.end() && one.candidate.choice.micro_batch >= known->second;
  }

  struct Trial {
    ClusterFit fit;
    bool counted = true;
  };
  /// Tries to fit the candidate; does not count the memory of one that cannot fit.
  Trial trial_of(const ParallelConfig& candidate) const {
    if (const std::size_t excess = least_excess(task_, candidate); excess > 0)
      return {.fit = {.candidate = candidate, .excess = excess}, .counted = false};
    return {.fit = fit_candidate(task_, candidate)};
  }

  /// Takes up the result of a trial. Returns false if the candidate was refused.
  bool take(const Candidate& one, std::future<Trial>& trial) {
    return unless_refused([&] {
      auto [found, counted] = trial.get();
      const auto best = best_.find(one.mesh);
      if (!found.fits) {
        too_large_[kind_of(one)] = one.candidate.choice.micro_batch;
        if (counted)
          note(found);
        else
          uncounted_.push_back(std::move(found));
      } else if (best == best_.end() || found.candidate.time.total() < best->second.time.total()) {
        best_.insert_or_assign(one.mesh, std::move(found.candidate));
      }
    });
  }

  /// Counts the uncounted candidates whose lower bound is below the nearest excess.
  void find_nearest_uncounted() {
    std::ranges::stable_sort(uncounted_, {}, &ClusterFit::excess);
    for (const ClusterFit& one : uncounted_) {
      if (nearest_ && nearest_excess_ <= one.excess) break;
      unless_refused([&] {
        ClusterFit found = fit_candidate(task_, one.candidate);
        note(found);
      });
    }
    uncounted_.clear();
  }

  /// Returns false, and remembers why, if `body` throws since flags rule a candidate out.
  template <class Body>
  bool unless_refused(Body&& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      why_ = error.what();
      return false;
    }
  }

  /// Returns the seconds of the slowest candidate that would be shown.
  double slowest_wanted() const {
    if (best_.size() < static_cast<std::size_t>(task_.top))
      return std::numeric_limits<double>::infinity();
    std::vector<double> times;
    for (const auto& [mesh, candidate] : best_)
      times.push_back(candidate.time.total());
    std::ranges::nth_element(times, times.begin() + (task_.top - 1));
    return times[static_cast<std::size_t>(task_.top - 1)];
  }

  void note(ClusterFit& found) {
    if (nearest_ && found.excess >= nearest_excess_) return;
    nearest_excess_ = found.excess;
    nearest_ = std::move(found.candidate);
  }

  const ClusterTask& task_;
  ClusterPlan plan_;
  std::map<Number, ParallelConfig> best_;
  /// The smallest micro-batch of each kind that did not fit; larger ones do not fit either.
  std::map<Kind, std::int64_t> too_large_;
  std::vector<ClusterFit> uncounted_;  ///< `excess` is a lower bound
  std::optional<ParallelConfig> nearest_;
  std::size_t nearest_excess_ = 0;
  std::string why_;  ///< reason why a mesh was refused
};

}  // namespace

ClusterFit fit_candidate(const ClusterTask& task, ParallelConfig candidate) {
  TrainOptions o = options_of(task, candidate, few_micro_batches(candidate));
  o.cpu_blocks = 0;  // with many GPUs in a host, each has few CPU cores
  const RunSetup setup = setup_of(task, o);
  const Attempt attempt = try_plan(o, setup, task.profile, counted_ranks(candidate.mesh, o));
  if (!attempt.plan) {
    candidate.choice = attempt.nearest;
    return {.candidate = std::move(candidate), .excess = attempt.excess};
  }
  candidate.choice = attempt.plan->choice;
  candidate.memory = attempt.plan->memory;
  if (candidate.mesh.pp > 1)
    if (const std::size_t excess = count_memory(task, candidate); excess > 0)
      return {.candidate = std::move(candidate), .excess = excess};
  add_time(task, candidate, o, setup);
  return {.candidate = std::move(candidate), .fits = true};
}

ClusterPlan plan_cluster(const ClusterTask& task) {
  return ClusterPlanner(task).plan();
}

}  // namespace sluice
