#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/parameter.h"
#include "engine/tensor.h"

namespace sluice {

/// All parameters of a model, laid out one after another in flat buffers: the working weights that
/// the model computes with, the master weights that the optimizer updates (the same buffer where
/// the working dtype is f32 or f64), and the gradients in the master's dtype.
class ParameterSpace {
 public:
  /// Slots start at multiples of this many elements; the gaps hold zeros for ever.
  static constexpr std::int64_t slot_alignment = 64;

  enum class Use { training, inference };

  struct Slot {
    std::string name;
    Shape shape;
    std::int64_t offset;  ///< elements
    std::int64_t size;
    bool decay;  ///< weight decay applies: tensors of two or more dimensions
    Initial initial;
    Tensor* tensor;
  };
  /// A stretch of the space whose slots agree on weight decay.
  struct Run {
    std::int64_t offset;
    std::int64_t size;
    bool decay;
  };

  /// Allocates and hands every declared parameter its tensor. For inference there is only the
  /// working buffer.
  ParameterSpace(const std::vector<Parameter>& parameters, const DevicePtr& device, DType working,
                 Use use);
  ParameterSpace(const ParameterSpace&) = delete;
  ParameterSpace& operator=(const ParameterSpace&) = delete;

  const std::vector<Slot>& slots() const { return slots_; }
  const Slot* find(const std::string& name) const;
  const std::vector<Run>& runs() const { return runs_; }
  std::int64_t size() const { return size_; }         ///< elements, gaps included
  std::int64_t parameters() const { return count_; }  ///< elements, gaps left out

  const Tensor& working() const { return working_; }
  const Tensor& master() const { return master_; }
  const Tensor& gradient() const { return gradient_; }
  bool has_master() const { return !master_.same_as(working_); }

  /// Starts every parameter from its declaration: a function of (seed, name, element) alone.
  void initialize(std::uint64_t seed);
  /// Derives the working weights from the master after it was written to.
  void derive_working();

  /// The next gradients overwrite those of the last step.
  void forget_gradients();
  /// Zeroes the gradients of parameters that no backward pass reached.
  void settle_gradients();
  /// Measures the l2 norm of all gradients, over fixed blocks of the space in order, and returns
  /// what the update multiplies them by (ClipFactor in kernels/clip.h): one element.
  const Tensor& clip_gradients(double limit, double loss_scale = 1);
  /// The norm that clip_gradients measured, loss scale taken out. Waits for the device.
  double gradient_norm() const { return norm_.item(); }

 private:
  std::vector<Slot> slots_;
  std::vector<Run> runs_;
  std::int64_t size_ = 0;
  std::int64_t count_ = 0;
  Tensor working_, master_, gradient_, norm_partials_, norm_, clip_factor_;
};

}  // namespace sluice
