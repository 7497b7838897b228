#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "engine/timeline.h"
#include "parallel/comm/communicator.h"
#include "parallel/pipeline/input_stash.h"
#include "parallel/pipeline/receive_turns.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/stage.h"

namespace sluice {

/// Makes a communicator on the compute device's memory for some ranks of the pipeline. `members`
/// are numbers in the pipeline. All members call it with the same arguments.
using MakeGroup = std::function<std::shared_ptr<Communicator>(
    std::span<const int> members, std::uint64_t id, const std::string& name)>;

/// The communicators between neighbouring stages. Two neighbouring stages on different ranks have
/// one for outputs and one for gradients, since messages of each direction have their own order.
class StageLinks {
 public:
  /// Makes the communicators that `rank` belongs to.
  StageLinks(const std::vector<int>& rank_of_stage, int rank, const MakeGroup& make);

  /// The links between `stage` and the next one: for outputs, and for gradients back. Null if both
  /// are on one rank or neither is on this rank.
  Communicator* outputs(int stage) const { return at(outputs_, stage); }
  Communicator* gradients(int stage) const { return at(gradients_, stage); }
  /// Returns true if a message on a link holds up those that are started after it.
  bool one_at_a_time() const;

 private:
  using Links = std::vector<std::shared_ptr<Communicator>>;
  static Communicator* at(const Links& links, int stage) {
    return links[static_cast<std::size_t>(stage)].get();
  }
  Links outputs_, gradients_;
};

/// What a rank keeps of a micro-batch between its forward and its backward.
enum class Stash {
  graph,  ///< the tensors that the ops have saved
  input,  ///< only the stage's received input: backward recomputes the rest, with the same bits
};

/// Runs one rank's part of any schedule that validate() accepts. Receives are started where the
/// schedule posts them, or in their turn where a link does one message at a time (receive_turns.h),
/// and messages are sent while the next actions compute. Memory is allocated and released at fixed
/// points of the schedule, not when a message happens to complete, so that the peak can be planned.
class PipelineExecutor {
 public:
  struct Hooks {
    /// Receives the loss of a micro-batch, on the rank of the last stage.
    std::function<void(int micro_batch, const Tensor& loss)> loss;
    /// Called before backward adds to the gradients of a stage.
    std::function<void(int stage, int micro_batch)> before_backward;
    /// Called after the gradients of a stage were added to; may be none.
    std::function<void(int stage, int micro_batch)> after_backward{};
  };

  /// `lowered` is a result of lower(). stages[s] is stage s; null if it is on another rank. All
  /// arguments must outlive the executor.
  PipelineExecutor(const Schedule& lowered, int rank, std::vector<Stage*> stages,
                   const StageLinks& links, Stash stash, DevicePtr device);

  /// Keeps at most `max_bytes` of stashed inputs on the device. Offloads the others to `host`
  /// (host memory) and copies them back before their backward. Needs Stash::input.
  void spill(std::size_t max_bytes, const DevicePtr& host);

  /// Records span_name() and "wait" with stage and micro-batch, and the copies of inputs.
  void set_timeline(Timeline* timeline);
  /// Returns the bytes of inputs copied to and from the host since the last call.
  StreamedBytes take_moved() { return inputs_ ? inputs_->take_moved() : StreamedBytes{}; }

  /// Runs one step. When it returns, what the compute stream does next comes after this rank's
  /// actions and messages.
  void run(const Hooks& hooks);

 private:
  /// A tensor from another rank. `handle` is set while its message is under way.
  struct Received {
    Tensor data;
    Handle handle;
  };
  /// A micro-batch in a stage.
  struct Flight {
    Received input;                               ///< none at the first stage
    std::optional<InputStash::Ticket> stashed{};  ///< the input, while it is in the stash
    Edge output;        ///< where its backward starts; the output itself is freed once sent
    Tensor result;      ///< to send or hand on; at the last stage the loss, with its graph
    Received gradient;  ///< of the output
    Tensor to_return;   ///< gradient of the input, to send back
    DeferredGradients weights;
  };
  struct Sent {
    Tensor data;
    Handle handle;
  };
  using Position = std::pair<int, int>;  ///< stage, micro-batch

  void forward(Position place, Flight& flight, const Hooks& hooks);
  void backward(Position place, Flight& flight, const Hooks& hooks);
  void add_weight_gradients(Position place, Flight& flight, const Hooks& hooks);
  Tensor compute(Position place, const Flight& flight);
  void put_away(Flight& flight);
  void bring_back(Flight& flight);
  void prefetch_input_after(std::size_t action);
  void receive(Received& into, const Stage::Boundary& boundary, const Action& action);
  void start_receive(const Action& action);
  void send(Communicator& link, Tensor data, const Action& action);
  void arrive(Position place, Received& received);
  void perform(const Action& action, const Hooks& hooks);

  bool last(int stage) const { return stage + 1 == schedule_.stages; }
  bool here(int stage) const { return stages_[static_cast<std::size_t>(stage)] != nullptr; }
  Stage& stage(int number) const { return *stages_[static_cast<std::size_t>(number)]; }

  const Schedule& schedule_;
  int rank_;
  std::vector<Stage*> stages_;
  const StageLinks& links_;
  Stash stash_;
  DevicePtr device_;
  std::optional<InputStash> inputs_;  ///< after spill()
  Timeline* timeline_ = nullptr;
  bool learns_ = false;  ///< the schedule has backward actions
  bool splits_;          ///< the weights' gradients have actions of their own
  std::map<Position, Flight> flights_;
  std::map<Communicator*, std::deque<Sent>> sent_;
  bool in_turn_;                    ///< receives are started in their turns
  std::vector<ReceiveTurn> turns_;  ///< of this rank; empty if receives start where they are posted
};

}  // namespace sluice
