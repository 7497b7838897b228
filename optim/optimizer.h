#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/parameter_space.h"
#include "optim/state_ring.h"
#include "optim/update_desk.h"
#include "optim/update_rule.h"

namespace sluice {

/// Updates the weights of a ParameterSpace from its gradients by a rule, chunk by chunk. State on
/// the device is updated in step(), all other while the next forward pass runs: whoever reads a
/// weight first says so by update_through() or finish(). State on the host passes through a ring of
/// places on the device, by the same kernels; or the CPU updates it where it rests, by kernels that
/// give the same bits. So training with state on the host gives the same bits.
/// Speculative chunks may be updated before the step, under the backward pass that completes other
/// gradients, as if nothing were clipped; what the step then refutes is taken back and done again.
class Optimizer {
 public:
  /// `places`: chunks that may be on their way at one time, on the device and on the CPU's desk.
  Optimizer(ParameterSpace& space, std::unique_ptr<UpdateRule> rule, int places = 4);

  std::string_view name() const { return rule_->name(); }

  /// One update. Gradients are multiplied by `gradient_scale` (clipping, loss scaling), one element
  /// on their device; where it is not finite, nothing but the count of updates changes. Gradients
  /// and scale must stay as they are until finish().
  void step(double rate, const Tensor& gradient_scale = {});
  /// Takes the last step back: its scale was not finite.
  void retract();
  /// Starts to bring the first chunks of the coming step to the device.
  void prefetch();
  /// The next step will most likely be given these, the scale in all bits.
  void speculate(double rate, double gradient_scale);
  /// The gradients of speculative chunks from element `begin` on are final: updates them.
  void speculate_down_to(std::int64_t begin);
  /// No step follows what was speculated.
  void abandon();
  /// Before the weights of elements below `end` are read: their updates are launched.
  void update_through(std::int64_t end);
  void finish();

  /// Records updates ("update") and how state moves.
  void set_timeline(Timeline* timeline);

  bool streams() const { return ring_.has_value(); }
  /// Whether the CPU updates some of it.
  bool shares_cpu() const { return desk_.has_value(); }
  /// How often what was speculated on has been undone.
  std::int64_t taken_back() const { return taken_back_; }
  /// Bytes moved by the round of updates that ended last.
  StreamedBytes moved() const;

  /// Updates done so far; set when resuming.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

  /// What is carried for one parameter, in the form in which it is stored: each field's elements,
  /// those of the slot's chunks one after another.
  std::vector<StateField> fields(const ParameterSpace::Slot& slot) const;
  void read_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                  std::span<std::byte> out);
  void write_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                   std::span<const std::byte> in);
  /// Before weights or state are read or written on the host's side.
  void settle();

 private:
  View working_view(const Chunk& chunk) const;
  void make_ring(int places);
  StateRing::Item homes(std::size_t chunk) const;
  StateRing::Speculation speculation(std::size_t chunk) const;
  void judge(const Tensor& gradient_scale);
  void keep();
  void make_desk(int places);
  void update_on_device(std::size_t chunk, const std::vector<std::byte*>& visiting);
  void update_in_ring(std::size_t chunk);
  void update_on_desk(std::size_t chunk);
  /// Whether the chunks of a slot hold nothing else.
  bool alone(const ParameterSpace::Slot& slot) const {
    return slot.bulk || space_.options().whole_tensors;
  }
  template <class Body>
  void for_each_piece(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                      std::size_t bytes, Body&& body) const;

  ParameterSpace& space_;
  std::unique_ptr<UpdateRule> rule_;
  ChunkedState state_;
  std::vector<std::size_t> on_host_;      ///< chunks, in order
  std::vector<std::size_t> speculative_;  ///< of them, backwards
  std::optional<StateRing> ring_;
  std::optional<UpdateDesk> desk_;
  UpdateStep step_;
  Tensor scale_;
  Tensor scratch_;            ///< of the rule, for one chunk after another
  bool pending_ = false;      ///< chunks on the host have not all been updated
  std::size_t next_ = 0;      ///< of on_host_
  Tensor speculative_scale_;  ///< one element
  double speculative_factor_ = 0;
  bool speculating_ = false;  ///< since the last step
  std::size_t next_speculative_ = 0;
  bool again_ = false;  ///< speculative chunks are among what is pending
  std::int64_t taken_back_ = 0;
  std::int64_t updates_ = 0;
  Timeline* timeline_ = nullptr;
};

std::unique_ptr<Optimizer> make_adamw(ParameterSpace& space, const AdamWOptions& options,
                                      int places = 4);
std::unique_ptr<Optimizer> make_sgd(ParameterSpace& space, const SgdOptions& options,
                                    int places = 4);
/// `space` is one of whole tensors, and its layout fp32 or split.
std::unique_ptr<Optimizer> make_adafactor(ParameterSpace& space, const AdafactorOptions& options);

}  // namespace sluice
