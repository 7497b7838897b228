#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {

/// One action of a rank of a pipeline, for one micro-batch of one stage.
struct Action {
  enum class Kind : std::uint8_t {
    forward,
    backward,
    send_output,       ///< to the next stage, after its forward
    receive_input,     ///< posts the receive of the previous stage's output: memory is ready for it
    send_gradient,     ///< gradient of its input, to the previous stage, after its backward
    receive_gradient,  ///< posts the receive of its output's gradient from the next stage
  };

  Kind kind = Kind::forward;
  int stage = 0;
  int micro_batch = 0;

  bool computes() const { return kind == Kind::forward || kind == Kind::backward; }
  friend bool operator==(const Action&, const Action&) = default;
};

/// The actions of all ranks of a pipeline in one step: each rank's actions in its order.
/// Consecutive stages may be on different ranks or on the same.
struct Schedule {
  int stages = 1;
  int micro_batches = 1;
  std::vector<std::vector<Action>> ranks{};

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Limits above any real job, so that a mistyped number does not ask for all memory.
inline constexpr int most_ranks = 4096, most_stages = 65536, most_micro_batches = 65536;
inline constexpr int most_forwards = 1 << 24;  ///< stages times micro-batches

// These schedules only compute: lower() adds sends and receives. Micro-batches go backward in
// ascending order in all of them, so that gradients are added in the same order in every schedule.

/// Naive model parallelism, the baseline for pipelines: one micro-batch at a time goes forward
/// through all stages and back.
Schedule layer_split(int ranks, int micro_batches);
/// All micro-batches forward, then all backward (Huang et al., "GPipe", 2019).
Schedule gpipe(int ranks, int micro_batches);
/// One forward, one backward (Narayanan et al., "PipeDream-Flush" in "Memory-efficient
/// pipeline-parallel DNN training", 2021): rank r holds at most ranks - r micro-batches.
Schedule one_forward_one_backward(int ranks, int micro_batches);
/// The same with `virtual_stages` stages on each rank, stage s on rank s % ranks (Narayanan et al.,
/// "Efficient large-scale language model training on GPU clusters", 2021, section 2.2): the bubble
/// shrinks by `virtual_stages`. Micro-batches go in groups of `ranks`. A smaller last group makes
/// ranks wait as if it were full. One virtual stage: one_forward_one_backward.
Schedule interleaved(int ranks, int virtual_stages, int micro_batches);

enum class ScheduleName : std::uint8_t {
  gpipe,
  one_forward_one_backward,
  interleaved,
  layer_split
};
/// Makes the schedule of that name. Only `interleaved` has virtual stages.
Schedule make_schedule(ScheduleName name, int ranks, int virtual_stages, int micro_batches);

/// The rank of every stage: the first rank that has an action of it, or -1 if none has.
std::vector<int> rank_of_stage(const Schedule& schedule);

/// Returns true if there are sends or receives, that is, if the schedule is lowered.
bool has_messages(const Schedule& schedule);

/// Adds messages between stages of different ranks. Results are sent as soon as they are computed.
/// The receive for an action is posted one computing action earlier, before the send that precedes
/// that one, since two ranks that both send first would wait for each other. An Error if the
/// schedule has messages already.
Schedule lower(const Schedule& computing);

/// The dependences between the actions of a schedule, which follow from the ranks of its stages.
class Messages {
 public:
  /// `ranks` has the rank of every stage.
  explicit Messages(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

  int rank_of(int stage) const { return ranks_[static_cast<std::size_t>(stage)]; }
  /// The action whose result is the input of a forward or the gradient with which a backward
  /// starts. None at the ends of the pipeline.
  std::optional<Action> producer(const Action& computing) const;
  /// The receive that a forward or backward needs; none if its producer is not on another rank.
  std::optional<Action> received_by(const Action& computing) const;
  /// The send after a forward or backward; none if no stage on another rank needs its result.
  std::optional<Action> sent_by(const Action& computing) const;

 private:
  bool apart(int stage, int neighbour) const;

  std::vector<int> ranks_;
};

/// The receive that belongs to a send, or the send that belongs to a receive.
Action counterpart(const Action& message);
/// The forward or backward whose result a message sends, or that needs what it receives.
Action computing_of(const Action& message);

}  // namespace sluice
