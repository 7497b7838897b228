#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <future>
#include <map>
#include <semaphore>
#include <span>
#include <tuple>

#include "apps/cli/progress.h"
#include "apps/plan/cluster/cluster_fit.h"
#include "apps/plan/plan_candidates.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

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
    std::ranges::stable_sort(plan_.candidates, {}, [](const ClusterCandidate& candidate) {
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
        task_.options.parallel.dp.value_or(1) * task_.pp.value_or(1) * task_.tp.value_or(1);
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
    ClusterCandidate candidate;
    double bound = 0;  ///< lower bound in seconds: without recompute and without state traffic
  };

  /// Gives a semaphore back what it has given.
  class Release {
   public:
    explicit Release(std::counting_semaphore<>& semaphore) : semaphore_(semaphore) {}
    ~Release() { semaphore_.release(); }
    Release(const Release&) = delete;
    Release& operator=(const Release&) = delete;

   private:
    std::counting_semaphore<>& semaphore_;
  };

  /// Returns true if two candidates differ in --zero alone.
  static bool are_alike(const Candidate& a, const Candidate& b) {
    const auto all_but_zero = [](const Candidate& one) {
      return std::tuple(one.mesh, one.candidate.pipeline, one.candidate.virtual_stages,
                        one.candidate.choice.micro_batch);
    };
    return all_but_zero(a) == all_but_zero(b);
  }

  /// Computes the bounds, some on each thread. Candidates that are alike follow one another.
  void compute_bounds(std::vector<Candidate>& candidates, std::int64_t threads) const {
    std::vector<std::span<Candidate>> groups;
    for (auto begin = candidates.begin(); begin != candidates.end();) {
      const auto end = std::find_if_not(begin, candidates.end(), [&](const Candidate& other) {
        return are_alike(*begin, other);
      });
      groups.emplace_back(begin, end);
      begin = end;
    }
    const auto compute = [&](std::span<Candidate> group) {
      std::vector<ClusterCandidate> alike;
      for (const Candidate& one : group)
        alike.push_back(one.candidate);
      const std::vector<double> seconds = predict_without_state(task_, alike);
      for (std::size_t i = 0; i < group.size(); ++i)
        group[i].bound = seconds[i];
    };
    std::vector<std::future<void>> shares;
    for (std::int64_t thread = 0; thread < threads; ++thread)
      shares.push_back(std::async(std::launch::async, [&, thread] {
        for (auto i = static_cast<std::size_t>(thread); i < groups.size();
             i += static_cast<std::size_t>(threads))
          compute(groups[i]);
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
      for (ClusterCandidate& candidate : candidates_of(task_, meshes[mesh])) {
        candidate.choice.layout = form.layout;
        candidate.choice.narrow_gradients = form.narrow_gradients;
        candidates.push_back({mesh, std::move(candidate)});
        fates[mesh] = Fate::open;
      }
    const std::int64_t threads =
        task_.options.machine.threads > 0 ? task_.options.machine.threads : cpu::available_cores();
    compute_bounds(candidates, threads);
    if (candidates.empty() && !meshes.empty())
      why_ = fmt::format("--batch-size {} cannot be divided between any of its meshes",
                         task_.options.batch.size);
    std::ranges::stable_sort(candidates, {}, &Candidate::bound);
    too_large_.clear();
    std::vector<std::int64_t> tried(meshes.size(), 0);
    auto next = candidates.begin();
    ProgressBar bar("planning", static_cast<double>(candidates.size()));
    // Several are tried at once. Results are taken in order, and those are dropped that an earlier
    // one makes needless, so the plan does not depend on the number of threads.
    std::counting_semaphore<> idle(threads);
    std::deque<std::pair<const Candidate*, std::future<Trial>>> trials;
    const auto first_is_over = [&] {
      return trials.front().second.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    const auto most = static_cast<std::size_t>(4 * threads);  // a result may wait for a slow one
    while (next != candidates.end() || !trials.empty()) {
      if (next != candidates.end() && needless(*next)) {
        bar.advance(1);
        ++next;
      } else if (next != candidates.end() && trials.size() < most && idle.try_acquire()) {
        trials.emplace_back(&*next, std::async(std::launch::async, [this, &idle, of = &*next] {
          const Release release(idle);
          return trial_of(of->candidate);
        }));
        ++next;
      } else if (next == candidates.end() || trials.size() == most || first_is_over()) {
        auto& [of, trial] = trials.front();
        if (!needless(*of) && take(*of, trial)) ++tried[of->mesh];
        bar.advance(1);
        trials.pop_front();
      } else {
        idle.acquire();  // waits until a thread is idle
        idle.release();
      }
    }
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
  Trial trial_of(const ClusterCandidate& candidate) const {
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
  std::map<Number, ClusterCandidate> best_;
  /// The smallest micro-batch of each kind that did not fit; larger ones do not fit either.
  std::map<Kind, std::int64_t> too_large_;
  std::vector<ClusterFit> uncounted_;  ///< `excess` is a lower bound
  std::optional<ClusterCandidate> nearest_;
  std::size_t nearest_excess_ = 0;
  std::string why_;  ///< reason why a mesh was refused
};

}  // namespace

ClusterPlan plan_cluster(const ClusterTask& task) {
  return ClusterPlanner(task).plan();
}

}  // namespace sluice
