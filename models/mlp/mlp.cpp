#include "models/mlp/mlp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/ops/relu.h"

namespace sluice {
namespace {

/// Keeps the variance through a ReLU (He et al., 2015, eq. 10).
double he_deviation(std::int64_t inputs) {
  return std::sqrt(2.0 / static_cast<double>(inputs));
}

}  // namespace

Mlp::Mlp(const MlpConfig& config) : config_(config) {
  check(config.in > 0 && config.width > 0 && config.layers > 0 && config.classes > 0,
        "an MLP needs positive sizes");
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::int64_t in = layer == 0 ? config.in : config.width;
    linears_.push_back(
        {fmt::format("layers.{}.linear", layer), in, config.width, he_deviation(in)});
    norms_.push_back({fmt::format("layers.{}.norm", layer), config.width});
  }
}

std::vector<Parameter> Mlp::parameters() {
  std::vector<Parameter> list;
  for (std::size_t layer = 0; layer < linears_.size(); ++layer) {
    list.push_back(linears_[layer].weight_parameter());
    list.push_back(linears_[layer].bias_parameter());
    std::ranges::move(norms_[layer].parameters(), std::back_inserter(list));
  }
  list.push_back({"classifier.weight",
                  {config_.classes, config_.width},
                  Initial::normal(he_deviation(config_.width)),
                  &classifier_});
  return list;
}

Tensor Mlp::hidden(const Tensor& x) const {
  Tensor h = x;
  for (std::size_t layer = 0; layer < linears_.size(); ++layer)
    h = norms_[layer](relu(linears_[layer](h)));
  return h;
}

Tensor Mlp::logits(const Tensor& x) const {
  const Tensor h = hidden(x);
  return linear_transposed(h, classifier_, h.dtype());
}

LinearCrossEntropy Mlp::loss(const Tensor& x, const Tensor& targets,
                             const LinearCrossEntropyOptions& options) const {
  return linear_cross_entropy(hidden(x), classifier_, targets, options);
}

}  // namespace sluice
