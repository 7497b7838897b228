#pragma once

#include <string>
#include <vector>

#include "engine/ops/layernorm.h"
#include "engine/ops/linear.h"
#include "engine/parameter.h"

namespace sluice {

/// x W + b, the weight stored [in, out].
struct LinearLayer {
  std::string name;
  std::int64_t in;
  std::int64_t out;
  double standard_deviation = 0.02;
  Tensor weight{};
  Tensor bias{};

  Parameter weight_parameter() {
    return {name + ".weight", {in, out}, Initial::normal(standard_deviation), &weight};
  }
  Parameter bias_parameter() { return {name + ".bias", {out}, Initial::constant(0), &bias}; }
  Tensor operator()(const Tensor& x, const Recall& recall = {}) const {
    return linear(x, weight, bias, recall);
  }
};

struct LayerNormLayer {
  std::string name;
  std::int64_t width;
  double epsilon = 1e-5;
  Tensor weight{};
  Tensor bias{};

  std::vector<Parameter> parameters() {
    return {{name + ".weight", {width}, Initial::constant(1), &weight},
            {name + ".bias", {width}, Initial::constant(0), &bias}};
  }
  Tensor operator()(const Tensor& x) const { return layernorm(x, weight, bias, epsilon); }
  /// `branch` may be none.
  ResidualNorm operator()(const Tensor& stream, const Tensor& branch) const {
    return residual_layernorm(stream, branch, weight, bias, epsilon);
  }
};

}  // namespace sluice
