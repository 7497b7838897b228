#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

/// One action of a rank of a pipeline, for one micro-batch of one stage.
struct Action {
  enum class Kind : std::uint8_t {
    forward,
    backward,          ///< without the weights' gradients, if the schedule has actions for them
    weight_gradients,  ///< after the backward
    send_output,       ///< to the next stage, after its forward
    receive_input,     ///< posts the receive of the previous stage's output; does not wait
    send_gradient,     ///< of its input, to the previous stage, after its backward
    receive_gradient,  ///< posts the receive of its output's gradient; does not wait
  };

  Kind kind = Kind::forward;
  int stage = 0;
  int micro_batch = 0;

  bool computes() const {
    return kind == Kind::forward || kind == Kind::backward || kind == Kind::weight_gradients;
  }
  friend bool operator==(const Action&, const Action&) = default;
};

/// The actions of one step, for each rank of a pipeline in the order in which it performs them.
/// Consecutive stages may be on the same rank.
struct Schedule {
  int stages = 1;
  int micro_batches = 1;
  std::vector<std::vector<Action>> ranks{};

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Limits above any real job, so that a mistyped number cannot exhaust memory.
inline constexpr int max_ranks = 4096, max_stages = 65536, max_micro_batches = 65536;
inline constexpr int max_forwards = 1 << 24;  ///< stages times micro-batches

// These schedules only have actions that compute; lower() adds sends and receives. In each of them
// the backwards of a stage run in ascending order of micro-batches, and so do its weight gradients.
// So all schedules add gradients in the same order.

/// Naive model parallelism, the baseline for pipelines: one micro-batch at a time goes forward
/// through all stages and back.
Schedule layer_split(int ranks, int micro_batches);
/// All micro-batches forward, then all backward (Huang et al., "GPipe", 2019).
Schedule gpipe(int ranks, int micro_batches);
/// One forward, one backward (Narayanan et al., "PipeDream-Flush" in "Memory-efficient
/// pipeline-parallel DNN training", 2021): rank r holds at most ranks - r micro-batches.
Schedule one_forward_one_backward(int ranks, int micro_batches);
/// 1F1B with `virtual_stages` stages on each rank, stage s on rank s % ranks (Narayanan et al.,
/// "Efficient large-scale language model training on GPU clusters", 2021, section 2.2): divides the
/// bubble by `virtual_stages`. Micro-batches go in groups of `ranks`; ranks wait as if the last
/// group were full. With one virtual stage it is one_forward_one_backward.
Schedule interleaved(int ranks, int virtual_stages, int micro_batches);

/// Divides the backwards of 1F1B into two parts (Qi et al., "Zero bubble pipeline parallelism",
/// 2023, ZB-H1). Ranks wait for the gradients of inputs alone; those of weights fill gaps. Rank r
/// leaves those of r micro-batches for later, so that every rank holds at most `ranks`
/// micro-batches, as rank 0 does in 1F1B.
Schedule zero_bubble_h1(int ranks, int micro_batches);

/// One rank, one stage for each layer: all micro-batches forward through a stage before the next
/// stage, then all backward from the last stage. A layer's weights are needed twice a step, not
/// twice a micro-batch, so they can stream (Pudipeddi et al., "Training large neural networks with
/// constant memory using a new execution algorithm", 2020).
Schedule layer_major(int stages, int micro_batches);

enum class ScheduleName : std::uint8_t {
  gpipe,
  one_forward_one_backward,
  interleaved,
  layer_split,
  zero_bubble_h1,
  layer_major
};
/// Makes the schedule of that name. Only `interleaved` and `layer_major` use `virtual_stages`;
/// `layer_major` has one rank.
Schedule make_schedule(ScheduleName name, int ranks, int virtual_stages, int micro_batches);

/// The rank of every stage: the first rank that has an action of it, or -1 if none has.
std::vector<int> rank_of_stage(const Schedule& schedule);

/// Returns the name of a computing action in a timeline; at most 15 characters (RankSpan).
std::string_view span_name(Action::Kind kind);

/// Returns true if the schedule has sends or receives, that is, if it is lowered.
bool has_messages(const Schedule& schedule);
/// Returns true if the schedule's backwards leave the weights' gradients to actions of their own.
bool splits_backward(const Schedule& schedule);

/// Adds the messages between stages of different ranks. A result is sent right after the action
/// that computes it. Receives are posted one computing action ahead: after its computing action i,
/// a rank posts the receive for action i + 2 and only then sends the result of action i, since two
/// ranks that both send first would wait for each other. Throws Error if the schedule has messages.
Schedule lower(const Schedule& computing);

/// The dependencies between the actions of a schedule, given the rank of each stage.
class Messages {
 public:
  /// `ranks` has the rank of every stage.
  explicit Messages(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

  int rank_of(int stage) const { return ranks_[static_cast<std::size_t>(stage)]; }
  /// The action whose result `computing` takes: the previous stage's forward, the next stage's
  /// backward, or for weight gradients the stage's own backward. None at the ends of the pipeline.
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
