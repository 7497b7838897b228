#pragma once

#include <functional>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

/// Forward and backward passes as CUDA graphs: a GPU is given a whole pass at once, not some
/// hundred kernels one by one. A graph repeats the addresses and numbers that its kernels were
/// first given, so there is one for each set of inputs, and it is recorded anew where the memory
/// that is in use besides its own has changed. The bits are those of passes without graphs.
///
/// A pass may read and write what stays in its place: weights, gradients, tokens. What else it
/// allocates is free when the graph has been recorded, and is written again by each launch. It must
/// not wait, copy from the host, or use another stream.
class PassGraphs {
 public:
  /// `loss`: the dtype of the loss of a micro-batch.
  PassGraphs(DevicePtr device, DType loss);
  ~PassGraphs();
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;

  /// The arguments of a micro-batch's kernels that differ between micro-batches.
  struct Inputs {
    const std::byte* tokens = nullptr;
    bool accumulate = false;  ///< the micro-batch adds to the gradients of earlier ones
    double loss_scale = 1;
  };
  /// Chooses how the passes of the next micro-batch run: the first time with these inputs kernel by
  /// kernel, since matrix products look for their algorithms then; the second time they are
  /// recorded; later they are repeated.
  void choose(const Inputs& inputs);
  /// True if the passes of this micro-batch are repeated, so that no op of them is called.
  bool repeats() const { return way_ == Way::repeat; }
  /// Runs a pass: calls `work`, or launches what the same pass has recorded.
  void run(const std::function<void()>& work);
  /// Called in a pass: keeps the loss, which is the pass's own memory.
  void keep_loss(const Tensor& loss);
  /// Returns the loss that the passes of this micro-batch kept.
  const Tensor& loss() const { return loss_; }

 private:
  enum class Way { kernels, record, repeat };
  struct Passes {
    Inputs inputs;
    std::uint64_t layout;  ///< of the arena when they were recorded
    std::vector<Graph> graphs;
  };

  Runtime& runtime() const { return device_->runtime(); }
  void forget(Passes& passes);

  DevicePtr device_;
  Tensor loss_;
  std::vector<Passes> all_;
  std::size_t current_ = 0;  ///< of all_
  std::size_t next_ = 0;     ///< pass of the current ones
  Way way_ = Way::kernels;
};

}  // namespace sluice
