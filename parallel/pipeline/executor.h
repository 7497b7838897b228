#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "engine/timeline.h"
#include "parallel/pipeline/links.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/stage.h"

namespace sluice {

/// What a rank keeps of a micro-batch between its forward and its backward.
enum class Stash {
  graph,  ///< what the ops have saved
  input,  ///< what the stage received alone: backward computes the rest again, with the same bits
};

/// Runs one rank's part of any schedule that validate() accepts. Messages are received one action
/// ahead and sent while the next actions compute; memory is given back at fixed places of the
/// schedule, not when a message happens to be through, so that its peak can be planned.
class PipelineExecutor {
 public:
  struct Hooks {
    /// The loss of a micro-batch, at the rank of the last stage.
    std::function<void(int micro_batch, const Tensor& loss)> loss;
    /// Before backward adds to the gradients of a stage.
    std::function<void(int stage, int micro_batch)> before_backward;
  };

  /// `lowered` has been lowered; `stages` by their numbers, null where they are on other ranks.
  /// Everything given outlives it.
  PipelineExecutor(const Schedule& lowered, int rank, std::vector<Stage*> stages,
                   const StageLinks& links, Stash stash, DevicePtr device);

  /// With Stash::input: inputs beyond so many bytes rest in the memory of `host`, a device of the
  /// host's, and come back before their backward.
  void spill(std::size_t most_bytes, DevicePtr host);

  /// Records "forward", "backward" and "wait" with stage and micro-batch.
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// One step: returns when all is computed and this rank's messages are through.
  void run(const Hooks& hooks);

 private:
  /// What comes from another rank; on its way as long as there is a handle.
  struct Received {
    Tensor data;
    Handle handle;
  };
  /// A micro-batch in a stage.
  struct Flight {
    Received input;     ///< none at the first stage
    Tensor resting;     ///< the input, while it is in the host's memory
    Edge output;        ///< where its backward starts; its elements are gone once they were sent
    Tensor result;      ///< to be handed on; at the last stage the loss, with its graph
    Received gradient;  ///< of the output
    Tensor to_return;   ///< of the input
  };
  struct Sent {
    Tensor data;
    Handle handle;
  };
  using Place = std::pair<int, int>;  ///< stage, micro-batch

  void forward(Place place, Flight& flight, const Hooks& hooks);
  void backward(Place place, Flight& flight, const Hooks& hooks);
  Tensor compute(Place place, const Flight& flight);
  void put_away(Flight& flight);
  void bring_back(Flight& flight);
  void receive(Communicator& link, Received& into, const Stage::Boundary& boundary,
               const Action& action);
  void send(Communicator& link, Tensor data, const Action& action);
  void arrive(Place place, Received& received);
  void perform(const Action& action, const Hooks& hooks);

  bool last(int stage) const { return stage + 1 == schedule_.stages; }
  bool here(int stage) const { return stages_[static_cast<std::size_t>(stage)] != nullptr; }
  Stage& stage(int number) const { return *stages_[static_cast<std::size_t>(number)]; }

  const Schedule& schedule_;
  int rank_;
  std::vector<Stage*> stages_;
  const StageLinks& links_;
  Stash stash_;
  DevicePtr device_, host_;
  std::size_t most_stashed_ = 0, stashed_ = 0;  ///< bytes of inputs on the device, with a host
  Timeline* timeline_ = nullptr;
  bool learns_ = false;  ///< the schedule has backward actions
  std::map<Place, Flight> flights_;
  std::map<Communicator*, std::deque<Sent>> sent_;
};

}  // namespace sluice
