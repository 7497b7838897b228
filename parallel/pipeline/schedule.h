#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

/// One thing that a rank of a pipeline does with one micro-batch of one stage.
struct Action {
  enum class Kind : std::uint8_t {
    forward,
    backward,
    send_output,       ///< to the next stage, after its forward
    receive_input,     ///< from the stage before, which sent its output: memory is ready for it
    send_gradient,     ///< of its input, to the stage before, after its backward
    receive_gradient,  ///< of its output, from the next stage
  };

  Kind kind = Kind::forward;
  int stage = 0;
  int micro_batch = 0;

  bool computes() const { return kind == Kind::forward || kind == Kind::backward; }
  friend bool operator==(const Action&, const Action&) = default;
};

/// What all ranks of a pipeline do in one step: each rank's actions in its order. Stages that
/// follow one another may be on different ranks or on the same.
struct Schedule {
  int stages = 1;
  int micro_batches = 1;
  std::vector<std::vector<Action>> ranks{};

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// More than a job can want, so that a slip of the pen does not ask for all memory.
inline constexpr int most_ranks = 4096, most_stages = 65536, most_micro_batches = 65536;
inline constexpr int most_forwards = 1 << 24;  ///< stages times micro-batches

// Computing alone: lower() adds what is sent and received. Micro-batches go backward in ascending
// order everywhere, so that gradients are added in the same order whatever the schedule.

/// One micro-batch at a time goes through all stages and back (naive model parallelism): what a
/// pipeline is compared with.
Schedule layer_split(int ranks, int micro_batches);
/// All micro-batches forward, then all backward (Huang et al., "GPipe", 2019).
Schedule gpipe(int ranks, int micro_batches);
/// One forward, one backward (Narayanan et al., "PipeDream-Flush" in "Memory-efficient
/// pipeline-parallel DNN training", 2021): rank r holds at most ranks - r micro-batches.
Schedule one_forward_one_backward(int ranks, int micro_batches);
/// The same with `virtual_stages` stages on each rank, stage s on rank s % ranks (Narayanan et al.,
/// "Efficient large-scale language model training on GPU clusters", 2021, section 2.2): the bubble
/// shrinks by `virtual_stages`. Micro-batches go in groups of `ranks`; the last may be smaller, and
/// then ranks wait as if it were not. With one virtual stage: one_forward_one_backward.
Schedule interleaved(int ranks, int virtual_stages, int micro_batches);

/// The rank of every stage: where its actions are, the first of several. -1: nowhere.
std::vector<int> rank_of_stage(const Schedule& schedule);

/// Whether something is sent or received: the schedule is lowered.
bool has_messages(const Schedule& schedule);

/// Adds messages between stages of different ranks: results are sent as soon as they are computed,
/// and memory for what an action needs is ready one computing action earlier, before the send that
/// precedes that one: two ranks that both send first would wait for each other. An Error if the
/// schedule has messages.
Schedule lower(const Schedule& computing);

}  // namespace sluice
