#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/offload/cpu_updater.h"
#include "optim/offload/file_ring.h"
#include "optim/offload/state_ring.h"
#include "optim/offload/weight_ring.h"
#include "optim/space/parameter_space.h"
#include "optim/update_rule.h"

namespace sluice {

/// Updates the weights of a ParameterSpace chunk by chunk, by an UpdateRule. step() updates chunks
/// whose state is on the device. The other chunks are updated during the next forward pass, so code
/// that reads a weight must first call update_through() or finish(). State in host memory is either
/// copied through a ring of device buffers and updated by the same kernels, or updated in place by
/// the CPU, with the same bits. So offload changes no bit of training. With HostMemory::file that
/// state is in a file, and the CPU updates it in a ring of buffers in host memory.
///
/// Speculative chunks may be updated before step(), while the backward pass runs, as if nothing
/// were clipped. If clipping does apply, step() undoes these updates and does them again.
///
/// The calls of one training step, in order:
///   backward pass        speculate(), then speculate_down_to() with ever lower elements
///   gradients complete   step(); cancel() if speculate() was called and no step follows
///   next forward pass    update_through() before each layer, or finish() for all
/// Without speculative chunks speculate(), speculate_down_to() and cancel() do nothing.
class Optimizer {
 public:
  /// `buffers`: how many chunks may be in transit at once, to the device and (counted apart) to the
  /// CPU.
  Optimizer(ParameterSpace& space, std::unique_ptr<UpdateRule> rule, int buffers = 4);

  std::string_view name() const { return rule_->name(); }

  /// Does one update with learning rate `rate`. Multiplies the gradients by `gradient_scale`
  /// (clipping, loss scaling): one element on their device, or none for 1. If it is not finite,
  /// only updates() changes. Gradients and scale must stay unchanged until finish().
  void step(double rate, const Tensor& gradient_scale = {});
  /// Undoes the last step, whose scale was not finite: updates() goes back by one.
  void roll_back();
  /// Starts copying the first chunks' state to where it is updated by the next step.
  void prefetch();
  /// Begins speculative updates for a step() with this rate and scale. They are kept if that step's
  /// scale has the same bits.
  void speculate(double rate, double gradient_scale);
  /// Updates the speculative chunks at or above element `begin`. Their gradients must be final.
  void speculate_down_to(std::int64_t begin);
  /// Undoes the speculative updates. Called if no step follows.
  void cancel();
  /// Launches the pending updates of all elements below `end`, and perhaps of some above. Call it
  /// before their weights are read: from step() until then, no work may read them.
  void update_through(std::int64_t end);
  /// Launches all pending updates.
  void finish();

  /// Records updates ("update") and the copies of state.
  void set_timeline(Timeline* timeline);

  bool streams() const { return ring_.has_value(); }
  /// Returns true if the CPU updates some of the state.
  bool shares_cpu() const { return cpu_updater_.has_value(); }
  /// Streams weights and gradients that rest in host memory; null if none do.
  WeightRing* weight_ring() { return weight_ring_ ? &*weight_ring_ : nullptr; }
  /// True from step() until all updates have been launched.
  bool pending() const { return pending_; }
  /// Number of times that speculative updates were undone.
  std::int64_t undone() const { return undone_; }
  /// Bytes copied for the last complete round of updates.
  StreamedBytes moved() const;

  /// Updates done so far; set when resuming.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

  /// The fields of a parameter's optimizer state as a checkpoint stores them: each field has the
  /// elements of all chunks of the slot, in order.
  std::vector<StateField> fields(const ParameterSpace::Slot& slot) const;
  /// Returns the elements of a field that this rank keeps, in order: all, unless ranks divide the
  /// state (ZeRO-1). Of the others read_state() gives zeros, and write_state() drops them.
  std::vector<Shard::Range> kept(const ParameterSpace::Slot& slot, std::size_t field) const;
  void read_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                  std::span<std::byte> out);
  void write_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                   std::span<const std::byte> in);
  /// Finishes all updates and copies. Call it before the host reads or writes weights or state.
  void synchronize();

 private:
  Residency residency(std::size_t chunk) const { return space_.chunks()[chunk].residency; }
  View working_view(const Chunk& chunk) const;
  void make_ring(int buffers);
  void make_file_ring(int buffers);
  StateRing::Item homes(std::size_t chunk) const;
  StateRing::Speculation speculation(std::size_t chunk) const;
  void resolve_speculation(const Tensor& gradient_scale);
  void commit();
  void make_cpu_updater(int buffers);
  void add_state(ChunkViews& views, std::size_t chunk, const View& working,
                 const std::vector<std::byte*>& visiting) const;
  ChunkViews device_views(std::size_t chunk, const std::vector<std::byte*>& visiting) const;
  void update_by_cpu(ChunkViews& views, std::size_t chunk, const View& working, const View& scale,
                     Stream stream);
  void update_in_ring(std::size_t chunk);
  std::vector<std::byte*> take_from_file();
  void update_next_on_cpu();
  void update_on_cpu_meanwhile();
  void wait_for_cpu(std::size_t chunk);
  void update_at_home(std::size_t chunk);
  /// True if the chunks of this slot hold no other slot.
  bool alone(const ParameterSpace::Slot& slot) const {
    return slot.bulk || space_.options().whole_tensors;
  }
  template <class Body>
  void for_each_piece(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                      std::size_t bytes, Body&& body) const;

  ParameterSpace& space_;
  std::unique_ptr<UpdateRule> rule_;
  ChunkedState state_;
  std::vector<std::size_t> on_host_;      ///< chunks with state off the device, in order
  std::vector<std::size_t> speculative_;  ///< the speculative ones of these, in reverse order
  std::vector<std::size_t> on_cpu_;       ///< those of these that the CPU updates, in order
  std::optional<StateRing> ring_;
  std::optional<FileRing> file_ring_;
  std::optional<CpuUpdater> cpu_updater_;
  std::optional<WeightRing> weight_ring_;
  UpdateStep step_;
  Tensor scale_;
  Tensor scratch_;               ///< memory for the rule, used by one chunk after another
  bool pending_ = false;         ///< some chunks with state off the device await their update
  std::size_t next_ = 0;         ///< position in on_host_
  std::size_t next_on_cpu_ = 0;  ///< position in on_cpu_
  Tensor speculative_scale_;     ///< one element
  double speculative_factor_ = 0;
  bool speculating_ = false;  ///< speculative updates have begun since the last step
  std::size_t next_speculative_ = 0;
  bool again_ = false;  ///< speculative chunks are updated again in the pending updates
  std::int64_t undone_ = 0;
  std::int64_t updates_ = 0;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
