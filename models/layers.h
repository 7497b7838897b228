#pragma once

#include <string>
#include <vector>

#include "engine/ops/linear.h"
#include "engine/ops/norm.h"
#include "engine/parameter.h"

namespace sluice {

/// A model or a part of one: an ordered list of named parameters. The list points to members, so a
/// Module cannot be copied or moved.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// All parameters, in the order of their memory layout.
  virtual std::vector<Parameter> parameters() = 0;
};

/// A layer x W + b with the weight stored as [in, out]. The sizes are those of the whole layer, of
/// which one of several ranks may have a shard.
struct LinearLayer {
  std::string name;
  std::int64_t in;
  std::int64_t out;
  double standard_deviation = 0.02;
  Tensor weight{};
  Tensor bias{};
  Shard weight_shard{}, bias_shard{};
  LinearOptions divided{};

  /// Keeps only these columns of the weight; other ranks of `group` have the others.
  void keep_columns(const std::vector<Shard::Range>& kept, TensorGroup* group) {
    weight_shard = {{in, out}, 1, kept};
    bias_shard = {{out}, 0, kept};
    divided.columns = group;
  }
  /// Keeps only these rows of the weight; other ranks of `group` have the others.
  void keep_rows(const Shard::Range& kept, TensorGroup* group) {
    weight_shard = {{in, out}, 0, {kept}};
    divided.rows = group;
  }

  Parameter weight_parameter() {
    return {.name = name + ".weight",
            .shape = weight_shard.divided() ? weight_shard.shape() : Shape{in, out},
            .initial = Initial::normal(standard_deviation),
            .tensor = &weight,
            .shard = weight_shard};
  }
  Parameter bias_parameter() {
    return {.name = name + ".bias",
            .shape = bias_shard.divided() ? bias_shard.shape() : Shape{out},
            .initial = Initial::constant(0),
            .tensor = &bias,
            .shard = bias_shard};
  }
  /// `tokens`: see LinearOptions.
  Tensor operator()(const Tensor& x, const Recomputable& recomputable = {},
                    const Shape& tokens = {}) const {
    LinearOptions options = divided;
    options.recomputable = recomputable;
    options.tokens = tokens;
    return linear(x, weight, bias, options);
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
  ResidualNorm operator()(const Tensor& stream, const Tensor& branch,
                          TensorGroup* group = nullptr) const {
    return residual_norm(stream, branch, weight, bias, epsilon, group);
  }
};

}  // namespace sluice
