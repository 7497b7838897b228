#include "models/mlp/mlp.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

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
  return parameters(0, config_.layers);
}

std::vector<Parameter> Mlp::parameters(std::int64_t first, std::int64_t last) {
  std::vector<Parameter> list;
  const auto append = [&](Parameter parameter, std::int64_t section) {
    parameter.section = static_cast<int>(section);
    list.push_back(std::move(parameter));
  };
  for (std::int64_t i = first; i < last; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    append(linears_[layer].weight_parameter(), i);
    append(linears_[layer].bias_parameter(), i);
    for (Parameter& parameter : norms_[layer].parameters())
      append(std::move(parameter), i);
  }
  if (last == config_.layers)
    append({"classifier.weight",
            {config_.classes, config_.width},
            Initial::normal(he_deviation(config_.width)),
            &classifier_},
           last);
  return list;
}

Tensor Mlp::hidden(const Tensor& x, std::int64_t first, std::int64_t last) const {
  Tensor h = x;
  for (auto layer = static_cast<std::size_t>(first); layer < static_cast<std::size_t>(last);
       ++layer)
    h = norms_[layer](relu(linears_[layer](h)));
  return h;
}

Tensor Mlp::logits(const Tensor& x) const {
  const Tensor h = hidden(x);
  return linear_transposed(h, classifier_, h.dtype());
}

LinearCrossEntropy Mlp::predict(const Tensor& hidden, const Tensor& targets,
                                const LinearCrossEntropyOptions& options) const {
  return linear_cross_entropy(hidden, classifier_, targets, options);
}

}  // namespace sluice
