#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "optim/space/chunked_state.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// The arrays that the update of one chunk reads and writes, all in the memory of the device (or
/// CPU) that updates.
struct ChunkViews {
  const Chunk& chunk;
  View master{};     ///< none if the master weight is split into working weight and remainder
  View working{};    ///< none if the model computes with the master weight itself
  View remainder{};  ///< i16; the low bits of a split master weight
  View gradient{};
  std::vector<View> state{};  ///< in the order of UpdateRule::fields
  View scratch{};             ///< f64, at least UpdateRule::scratch elements, with any values
};

struct UpdateStep {
  std::int64_t count = 0;  ///< number of updates, this one included
  double rate = 0;
  View gradient_scale{};  ///< one element; if it is not finite, nothing changes
};

/// The formula of an optimizer: the state that it needs for a chunk, and how it updates the chunk.
/// It holds no state of its own.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual std::string_view name() const = 0;
  /// `sums`: dtype of fields that are not rounded: f32, or f64 in gradient checks.
  virtual std::vector<StateField> fields(const Chunk& chunk, DType sums) const = 0;
  /// Number of f64 scratch elements that the chunk's update needs. All chunks share this memory.
  virtual std::int64_t scratch(const Chunk&) const { return 0; }
  /// Updates chunks, in order.
  virtual void update(std::span<const ChunkViews> chunks, const UpdateStep& step,
                      Stream stream) const = 0;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
};
/// `layout` says how the moments of bulk chunks are stored; other chunks have them in f32 (f64).
std::unique_ptr<UpdateRule> adamw_rule(const AdamWOptions& options, StateLayout layout);

struct SgdOptions {
  double momentum = 0.9;
  double weight_decay = 0;
};
std::unique_ptr<UpdateRule> sgd_rule(const SgdOptions& options);

/// The formula is in kernels/adafactor.h; the n-th update decays moments by 1 - n^-decay_power.
struct AdafactorOptions {
  double decay_power = 0.8;
  double epsilon1 = 1e-30;
  double epsilon2 = 1e-3;
  double clip = 1;
  double weight_decay = 0;
  /// Multiplies each tensor's rate by the root mean square of its weights, as in the paper.
  bool scale_by_weights = true;
};
/// Works only with a space of whole tensors: its means are over whole rows and columns.
std::unique_ptr<UpdateRule> adafactor_rule(const AdafactorOptions& options);

}  // namespace sluice
