#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "optim/chunked_state.h"
#include "optim/state_layout.h"

namespace sluice {

/// What an update of one chunk reads and writes, all on the device.
struct ChunkViews {
  const Chunk& chunk;
  View master{};     ///< none where working and remainder are its halves
  View working{};    ///< none where the master is what the model computes with
  View remainder{};  ///< i16
  View gradient{};
  std::vector<View> state{};  ///< in the order of UpdateRule::fields
  View scratch{};             ///< f64, at least UpdateRule::scratch; any values
};

struct UpdateStep {
  std::int64_t count = 0;  ///< of updates, this one included
  double rate = 0;
  View gradient_scale{};  ///< one element; where it is not finite nothing changes
};

/// The formula of an optimizer: what it carries for a chunk and how it updates one. It holds no
/// state of its own.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual std::string_view name() const = 0;
  /// `sums` is the dtype of full precision: f32, or f64 in proofs.
  virtual std::vector<StateField> fields(const Chunk& chunk, DType sums) const = 0;
  /// Numbers that an update of the chunk works with and leaves behind; chunks share the memory.
  virtual std::int64_t scratch(const Chunk&) const { return 0; }
  virtual void update(const ChunkViews& views, const UpdateStep& step, Stream stream) const = 0;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
};
/// `layout` says how the moments of bulk chunks are stored; all others have them in f32.
std::unique_ptr<UpdateRule> adamw_rule(const AdamWOptions& options, StateLayout layout);

struct SgdOptions {
  double momentum = 0.9;
  double weight_decay = 0;
};
std::unique_ptr<UpdateRule> sgd_rule(const SgdOptions& options);

/// kernels/adafactor.h has the formula; the n-th update decays moments by 1 - n^-decay_power.
struct AdafactorOptions {
  double decay_power = 0.8;
  double epsilon1 = 1e-30;
  double epsilon2 = 1e-3;
  double clip = 1;
  double weight_decay = 0;
  /// Each tensor's rate is multiplied by the size of its weights, as in the paper.
  bool scale_by_weights = true;
};
/// For spaces of whole tensors: a mean belongs to all of a row or a column.
std::unique_ptr<UpdateRule> adafactor_rule(const AdafactorOptions& options);

}  // namespace sluice
