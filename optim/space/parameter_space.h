#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/parameter.h"
#include "engine/tensor.h"
#include "optim/space/chunked_state.h"
#include "optim/space/flat_buffer.h"
#include "optim/space/gradient_buffers.h"
#include "optim/space/space_layout.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// How the parameters of a training run are stored.
struct SpaceOptions {
  StateLayout layout = StateLayout::fp32;
  /// Sums the gradients of large matrices in bf16; needs bf16 weights. Embeddings and small tensors
  /// keep f32 gradients.
  bool narrow_gradients = false;
  /// Largest number of elements in one chunk of a large matrix.
  std::int64_t chunk = std::int64_t{4} << 20;
  /// residency[s] says where the state of the large matrices of section s (Parameter::section) is
  /// kept; sections beyond the end: on the device.
  std::vector<Residency> residency{};
  bool cpu_tables = false;  ///< LayoutOptions::cpu_tables
  HostMemory host{};        ///< memory for state that does not rest on the device
  /// Makes every tensor one chunk, for update rules that need the whole matrix (Adafactor, Muon).
  bool whole_tensors = false;
  /// The ranges whose state this rank keeps and updates; none: all of the space. They are ascending
  /// and begin and end at blocks of the SpaceLayout (with whole tensors: between slots). Weights
  /// outside them change only through write_weights(), or when other code, such as an all-gather,
  /// writes the working weights.
  std::optional<std::vector<SpaceRange>> owned{};
  /// Keeps the gradients of the owned ranges only (ZeRO-2); see GradientBuffers.
  bool shard_gradients = false;

  /// True if ranks divide the optimizer state (ZeRO-1).
  bool zero() const { return owned.has_value(); }

  LayoutOptions layout_options() const { return {narrow_gradients, residency, cpu_tables}; }
};

/// Holds all parameters of a model in flat buffers: the working weights that the model computes
/// with, the master weights that the optimizer updates, and the gradients. With f32 or f64 weights
/// the working weights are the master weights. Else the master weights are stored chunk by chunk,
/// as the state layout says.
class ParameterSpace {
 public:
  using Slot = SpaceLayout::Slot;

  enum class Use { training, inference };

  /// Allocates memory and hands every declared parameter its tensor. For inference it makes only
  /// the working buffer.
  ParameterSpace(const std::vector<Parameter>& parameters, const DevicePtr& device, DType working,
                 Use use, const SpaceOptions& options = {});
  ParameterSpace(const ParameterSpace&) = delete;
  ParameterSpace& operator=(const ParameterSpace&) = delete;

  const SpaceLayout& layout() const { return layout_; }
  const std::vector<Slot>& slots() const { return layout_.slots; }
  const Slot* find(const std::string& name) const;
  /// All chunks in the order of the space; together they cover every slot.
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::int64_t size() const { return layout_.size; }  ///< in elements, gaps included
  /// Number of elements, gaps left out.
  std::int64_t parameters() const { return layout_.parameters; }

  const DevicePtr& device() const { return working_.device(); }
  const SpaceOptions& options() const { return options_; }
  /// The working weights, by element of the space.
  const FlatBuffer& working() const { return working_; }
  bool has_master() const { return master_ != nullptr; }
  /// The master weights, stored by chunk; null if the working weights are the master.
  const ChunkedState* master() const { return master_.get(); }
  ChunkedState* master() { return master_.get(); }
  View gradient_view(const Chunk& chunk) const;
  const GradientBuffers& gradients() const { return *gradients_; }
  /// How often the host has written the weights of a section that rest there. A copy on the device
  /// is out of date if the number has changed since.
  std::uint64_t version(int section) const;
  /// Counts such a write, by an update where the weights rest.
  void count_write(int section) { ++versions_[static_cast<std::size_t>(section)]; }

  /// The dtype in which weights are read and written: that of the master weights (f32 or f64); for
  /// inference that of the working weights.
  DType weight_dtype() const;
  /// Reads weights from element `first` of the space on, within one slot, in weight_dtype(). Gives
  /// zeros where another rank keeps the master weights. No update may be under way.
  void read_weights(std::int64_t first, std::span<std::byte> out) const;
  /// Writes the master weights and the working weights from element `first` on.
  void write_weights(std::int64_t first, std::span<const std::byte> in);
  /// Same, but `in` has elements of the whole tensor, from its element `first` on. Writes those of
  /// this rank's shard. Uses `in` as scratch memory.
  void write_shard(const Slot& slot, std::int64_t first, std::span<std::byte> in);
  /// Initializes every parameter as declared. Each value depends only on (seed, name, element).
  void initialize(std::uint64_t seed);

  /// Makes the next gradients overwrite those of the last step.
  void forget_gradients();
  /// Counts all gradients as written, since a CUDA graph has repeated a pass that writes them all.
  void count_gradients_as_written();
  /// Zeroes the gradients of parameters that no backward pass reached; not those in a place that
  /// sections share.
  void zero_unused_gradients();
  /// Measures the l2 norm of all gradients, over the blocks of the layout in order, and returns the
  /// factor by which the update multiplies them (ClipFactor in kernels/reduce.h): one element.
  const Tensor& clip_gradients(double limit, double loss_scale = 1);
  /// clip_gradients() in two steps, for ranks that share the gradients. sum_squares() returns
  /// [blocks of the layout] in f64: the sum of squares of each block in `ranges`, zero for the
  /// others. clip_factor() takes the sums of all blocks.
  /// Sections whose gradients rest in host memory are left out: sum_squares_of() must have been
  /// called for them, and `ranges` be the whole space or empty.
  const Tensor& sum_squares(const std::vector<SpaceRange>& ranges);
  /// Computes the sums of a section's gradients that will rest in host memory, while they are on
  /// the device.
  void sum_squares_of(int section);
  const Tensor& clip_factor(const Tensor& partials, double limit, double loss_scale = 1);
  /// The norm that clip_gradients measured, without the loss scale: one f64.
  const Tensor& norm() const { return norm_; }
  /// Waits for the device.
  double gradient_norm() const { return norm_.item(); }

 private:
  void cut_into_chunks();
  void cut_at_borders();
  void make_gradients();
  bool rests(const SpaceLayout::Stretch& stretch) const;
  template <class Body>
  void for_each_piece(std::int64_t first, std::int64_t count, Body&& body) const;

  SpaceOptions options_;
  SpaceLayout layout_;
  std::vector<Chunk> chunks_;
  FlatBuffer working_;
  Tensor norm_partials_, norm_, clip_factor_;
  std::vector<std::uint64_t> versions_;  ///< by section
  std::optional<GradientBuffers> gradients_;
  std::unique_ptr<ChunkedState> master_;
};

}  // namespace sluice
