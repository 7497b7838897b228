#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/ops/linear/low_rank.h"
#include "engine/parameter.h"
#include "engine/rng.h"
#include "models/lora/lora_config.h"

namespace sluice {

/// The adapters of one linear layer: one, or one for each part that files keep apart, such as q, k
/// and v. They lie in two parameters, the matrices A and the matrices B, one below the other.
class Adapter {
 public:
  Adapter() = default;  ///< none
  /// `parts`: what the layer consists of, with their numbers of outputs: itself, or the layers that
  /// files have instead of it. `prefix`: what PEFT puts before their names. `site`: of the dropout;
  /// see DropoutSource::mask.
  Adapter(const LoraConfig& config, const std::string& prefix, std::int64_t inputs,
          const std::vector<StoredPart>& parts, std::uint64_t site);

  /// Keeps what adapts these outputs of the layer; other ranks of `group` have the others.
  void keep_columns(const std::vector<Shard::Range>& kept, TensorGroup* group);
  /// Keeps the part of the matrices A for these inputs; other ranks of `group` have the others.
  void keep_rows(const Shard::Range& kept, TensorGroup* group);

  explicit operator bool() const { return !layers_.empty(); }
  std::vector<Parameter> parameters();
  /// Those of parameters() that have tensors.
  std::vector<Tensor> tensors() const { return {weights_.a, weights_.b}; }
  /// Adds the change to `y`, which the layer computed from x and which must not be used afterwards.
  Tensor operator()(const Tensor& y, const Tensor& x, const Recomputable& recomputable,
                    const DropoutSource& dropout) const;

 private:
  std::int64_t rank_ = 0, inputs_ = 0;
  std::uint64_t site_ = 0;
  std::vector<StoredPart> layers_;    ///< the adapted ones, with their outputs
  std::vector<Shard::Range> b_rows_;  ///< of the matrices B on this rank; none: all
  std::vector<Shard::Range> a_columns_;
  LowRankWeights weights_{};
};

}  // namespace sluice
