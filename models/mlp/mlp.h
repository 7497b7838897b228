#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/linear/linear_cross_entropy.h"
#include "engine/shard.h"
#include "engine/tensor_group.h"
#include "models/layers.h"

namespace sluice {

/// A plain multilayer perceptron for small experiments: `layers` times (linear, ReLU, LayerNorm),
/// then a linear classifier trained by softmax cross-entropy.
struct MlpConfig {
  std::int64_t in = 0;
  std::int64_t width = 0;
  std::int64_t layers = 1;
  std::int64_t classes = 0;
  /// If above 0, a layer is (linear to `hidden`, ReLU, linear back to `width`, LayerNorm): a pair
  /// that ranks can divide, the first by columns and the second by rows, with one sum over the
  /// ranks forward and one backward (Shoeybi et al., "Megatron-LM", 2019, section 3).
  std::int64_t hidden = 0;
};

class Mlp final : public Module {
 public:
  /// `share`: this rank's share if several ranks divide the pairs and the classes. Throws Error
  /// (usage) with the arithmetic if they cannot be divided.
  explicit Mlp(const MlpConfig& config, const TensorShare& share = {});

  const MlpConfig& config() const { return config_; }
  std::vector<Parameter> parameters() override;
  /// The parameters of layers [first, last) alone; the last layer's come with the classifier.
  std::vector<Parameter> parameters(std::int64_t first, std::int64_t last);
  /// x: [rows, in]; result: [rows, width].
  Tensor hidden(const Tensor& x) const { return hidden(x, 0, config_.layers); }
  /// Computes layers [first, last) alone.
  Tensor hidden(const Tensor& x, std::int64_t first, std::int64_t last) const;
  /// Returns [rows, classes]; if several ranks divide the classes, each has its part of them.
  Tensor logits(const Tensor& x) const;
  /// Returns the most likely class of each row, of all ranks' classes.
  std::vector<std::int32_t> classify(const Tensor& x) const;
  /// targets: [rows] i32. Recording follows the rules of LinearCrossEntropy.
  LinearCrossEntropy loss(const Tensor& x, const Tensor& targets,
                          const LinearCrossEntropyOptions& options) const {
    return predict(hidden(x), targets, options);
  }
  /// The same from the result of the last layer.
  LinearCrossEntropy predict(const Tensor& hidden, const Tensor& targets,
                             const LinearCrossEntropyOptions& options) const;

 private:
  Shard::Range part(std::int64_t count, int rank) const {
    return part_of(count, rank, share_.size);
  }
  void divide();

  MlpConfig config_;
  TensorShare share_;
  std::vector<LinearLayer> linears_;
  std::vector<LinearLayer> linears_back_;  ///< the second layers of the pairs; empty without pairs
  std::vector<NormLayer> norms_;
  Tensor classifier_;
};

}  // namespace sluice
