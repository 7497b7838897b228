#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/parameter.h"
#include "engine/tensor.h"
#include "optim/chunked_state.h"
#include "optim/state_layout.h"

namespace sluice {

/// How the parameters of a training run are stored.
struct SpaceOptions {
  StateLayout layout = StateLayout::fp32;
  /// Gradients of large matrices are summed in bf16; needs bf16 weights. Embeddings and small
  /// tensors stay in f32.
  bool narrow_gradients = false;
  /// The most elements of one chunk of a large matrix.
  std::int64_t chunk = std::int64_t{4} << 20;
  /// Large matrices from this parameter on keep their state in `host`'s memory; empty: none does.
  std::string first_on_host{};
  DevicePtr host{};
  /// Every tensor is a chunk of its own, never cut, and its state stays on the device: for update
  /// rules that need to see all of a matrix.
  bool whole_tensors = false;
};

/// All parameters of a model, laid out one after another: the working weights that the model
/// computes with, the master weights that the optimizer updates (the same buffer where the working
/// dtype is f32 or f64, else chunk by chunk in the form that the layout says), and the gradients.
class ParameterSpace {
 public:
  /// Slots start at multiples of this many elements; the gaps hold zeros for ever.
  static constexpr std::int64_t slot_alignment = 64;
  /// Matrices of fewer elements count as small tensors, of which nothing is quantised or streamed.
  static constexpr std::int64_t bulk_threshold = 4096;

  enum class Use { training, inference };

  struct Slot {
    std::string name;
    Shape shape;
    std::int64_t offset;  ///< elements
    std::int64_t size;
    bool decay;  ///< weight decay applies: tensors of two or more dimensions
    bool bulk;   ///< a large matrix that is not an embedding
    bool on_host;
    std::int64_t gradient_offset;
    Initial initial;
    Tensor* tensor;
  };

  /// Allocates and hands every declared parameter its tensor. For inference there is only the
  /// working buffer.
  ParameterSpace(const std::vector<Parameter>& parameters, const DevicePtr& device, DType working,
                 Use use, const SpaceOptions& options = {});
  ParameterSpace(const ParameterSpace&) = delete;
  ParameterSpace& operator=(const ParameterSpace&) = delete;

  const std::vector<Slot>& slots() const { return slots_; }
  const Slot* find(const std::string& name) const;
  /// In the order of the space; together they cover every slot.
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::int64_t size() const { return size_; }         ///< elements, gaps included
  std::int64_t parameters() const { return count_; }  ///< elements, gaps left out

  const DevicePtr& device() const { return working_.device(); }
  const SpaceOptions& options() const { return options_; }
  const Tensor& working() const { return working_; }
  bool has_master() const { return master_ != nullptr; }
  /// The master weights as state of the chunks; null where the working weights are the master.
  const ChunkedState* master() const { return master_.get(); }
  View gradient_view(const Chunk& chunk) const;

  /// The dtype in which weights are read and written: the master's, f32 or f64; for inference that
  /// of the working weights.
  DType weight_dtype() const;
  /// Elements [first, ...) of the weights, of one slot, at full precision. No update may be under
  /// way.
  void read_weights(std::int64_t first, std::span<std::byte> out) const;
  /// Sets them and what the model computes with.
  void write_weights(std::int64_t first, std::span<const std::byte> in);
  /// Starts every parameter from its declaration: a function of (seed, name, element) alone.
  void initialize(std::uint64_t seed);

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
  void lay_out(const std::vector<Parameter>& parameters);
  void cut_into_chunks();
  void make_gradients();
  template <class Body>
  void for_each_piece(std::int64_t first, std::int64_t count, Body&& body) const;

  SpaceOptions options_;
  std::vector<Slot> slots_;
  std::vector<Chunk> chunks_;
  std::int64_t size_ = 0;
  std::int64_t count_ = 0;
  std::int64_t wide_size_ = 0, narrow_size_ = 0;  ///< elements of the gradient buffers
  Tensor working_, wide_gradient_, narrow_gradient_, norm_partials_, norm_, clip_factor_;
  std::unique_ptr<ChunkedState> master_;
};

}  // namespace sluice
