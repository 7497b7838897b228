#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "engine/timeline.h"
#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"
#include "parallel/data_parallel/bucket_plan.h"

namespace sluice {

/// Sums the gradients over ranks bucket by bucket: each bucket as soon as backward has completed
/// it, while the rest of backward runs (as in PyTorch DDP; Li et al., 2020). Every rank divides its
/// loss by the token count of all ranks, so the sum is the mean and nothing is divided afterwards.
/// If the space has owned ranges (ZeRO-1), a rank receives only their sums (reduce-scatter).
///
/// If the space shards gradients (ZeRO-2), the gradients of a section are also reduced when
/// backward moves on to another section, and added to this rank's sums before a third section takes
/// their place. So with several micro-batches a step reduces a section once for each of them,
/// unless its backward passes follow one another.
class GradientReducer {
 public:
  struct Options {
    /// Reductions begin during backward, not after it.
    bool overlap = true;
    /// Allocates scratch memory for reductions on the space's device, which must be the host.
    bool scratch = true;
    View padded{};  ///< scratch memory for all reductions on a GPU: padded_bytes()
  };

  /// Installs hooks for gradients in `space`, which the destructor removes. All arguments must
  /// outlive this object.
  GradientReducer(ParameterSpace& space, const BucketPlan& bucket_plan, Communicator& ranks,
                  const Options& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Records reductions ("reduce" on the network's lane) and the wait for them ("wait").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  bool overlaps() const { return options_.overlap; }

  /// Call it before the step's last backward passes for the slots in `range`: from then on a
  /// gradient that is ready is complete. Other slots' gradients are complete only at finish().
  void expect(const SpaceRange& range);
  void expect() { expect({0, space_.size()}); }
  /// Starts to sum a section's gradients that will rest in host memory (Residency::host), apart
  /// from all buckets. Call it after the section's last backward.
  void start_resting(int section);
  /// Makes work queued from now on wait for these sums (Operation::join).
  void join_resting();
  /// Call it after backward. Reduces the remaining buckets and waits for all. Gradients that
  /// backward did not reach are zero.
  void finish();

 private:
  struct UnderWay {
    Handle handle{};
    std::size_t span = 0;
    bool recorded = false;
  };
  /// The reduction of a bucket's wide or narrow gradients.
  struct Reduction {
    std::size_t bucket = 0;
    bool narrow = false;
    Handle handle{};
  };
  /// A place of GradientBuffers, and the section whose gradients are in it.
  struct Place {
    int section = -1;
    bool open = false;                    ///< backward may still add to them
    std::vector<Reduction> reductions{};  ///< not yet in this rank's sums
  };
  void begin(std::size_t slot);
  void ready(std::size_t slot);
  void start(std::size_t bucket);
  Handle reduce(const View& data, const std::string& label, const std::vector<Part>* parts);
  void close(Place& place);
  void add_to_sums(Place& place);
  Place* place_of(std::size_t bucket);
  void zero_sums_without_gradient();
  void note_finished();

  ParameterSpace& space_;
  const BucketPlan& bucket_plan_;
  Communicator& ranks_;
  Options options_;
  std::vector<std::vector<std::size_t>> buckets_of_slot_;
  std::vector<std::size_t> slots_left_;  ///< of each bucket
  std::vector<bool> started_;
  /// If gradients are sharded: whether this rank's sums of bucket i have a gradient of this step,
  /// at 2 i of the wide ones and at 2 i + 1 of the narrow ones.
  std::vector<bool> summed_;
  std::vector<bool> expected_;   ///< one flag for each slot; empty between steps
  std::vector<Tensor> scratch_;  ///< used in turn by the operations under way
  std::size_t reductions_ = 0;   ///< started in this step
  std::deque<UnderWay> under_way_;
  std::vector<Handle> resting_;  ///< the sums that join_resting() waits for
  std::vector<Place> places_;    ///< none: gradients are not sharded
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
