#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/linear_cross_entropy.h"
#include "models/layers.h"
#include "models/module.h"

namespace sluice {

/// A plain multilayer perceptron for small experiments: `layers` times (linear, ReLU, LayerNorm),
/// then a linear classifier trained by softmax cross-entropy.
struct MlpConfig {
  std::int64_t in = 0;
  std::int64_t width = 0;
  std::int64_t layers = 1;
  std::int64_t classes = 0;
};

class Mlp final : public Module {
 public:
  explicit Mlp(const MlpConfig& config);

  const MlpConfig& config() const { return config_; }
  std::vector<Parameter> parameters() override;
  /// Those of layers [first, last) alone; the last layer's come with the classifier.
  std::vector<Parameter> parameters(std::int64_t first, std::int64_t last);
  /// x: [rows, in]; result: [rows, width].
  Tensor hidden(const Tensor& x) const { return hidden(x, 0, config_.layers); }
  /// Through layers [first, last).
  Tensor hidden(const Tensor& x, std::int64_t first, std::int64_t last) const;
  /// [rows, classes]
  Tensor logits(const Tensor& x) const;
  /// targets: [rows] i32. See LinearCrossEntropy for the rules of recording.
  LinearCrossEntropy loss(const Tensor& x, const Tensor& targets,
                          const LinearCrossEntropyOptions& options) const {
    return predict(hidden(x), targets, options);
  }
  /// The same from the result of the last layer.
  LinearCrossEntropy predict(const Tensor& hidden, const Tensor& targets,
                             const LinearCrossEntropyOptions& options) const;

 private:
  MlpConfig config_;
  std::vector<LinearLayer> linears_;
  std::vector<LayerNormLayer> norms_;
  Tensor classifier_;
};

}  // namespace sluice
