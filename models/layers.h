#pragma once

#include <string>
#include <vector>

#include "engine/ops/linear/linear.h"
#include "engine/ops/linear/quantized_matrix.h"
#include "engine/ops/norm.h"
#include "engine/parameter.h"
#include "models/lora/adapter.h"

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

/// A layer x W + b. The sizes are those of the whole layer, of which one of several ranks may have
/// a shard.
struct LinearLayer {
  std::string name;
  std::int64_t in;
  std::int64_t out;
  double standard_deviation = 0.02;
  WeightLayout layout = WeightLayout::in_out;
  bool has_bias = true;
  /// Names of the layers of which files have this one's outputs, and their numbers of outputs. Only
  /// for weights that are stored [out, in].
  std::vector<StoredPart> parts{};
  Tensor weight{};
  Tensor bias{};
  bool keeps_int8 = false;      ///< the weight is in `quantized`
  QuantizedMatrix quantized{};  ///< dequantized for each product
  Shard weight_shard{}, bias_shard{};
  LinearOptions divided{};
  Adapter adapter{};

  /// Adds low-rank adapters, if the configuration has some for this layer, and keeps the weight as
  /// the configuration says. `prefix`: what the adapters' names begin with. `site`: of their
  /// dropout.
  void adapt(const LoraConfig& config, const std::string& prefix, std::uint64_t site) {
    const std::vector<StoredPart> whole{{name, out}};
    adapter = Adapter(config, prefix, in, parts.empty() ? whole : parts, site);
    keeps_int8 = config.int8_base;
  }
  /// Keeps only these outputs; other ranks of `group` have the others.
  void keep_columns(const std::vector<Shard::Range>& kept, TensorGroup* group) {
    weight_shard = {shape(), layout == WeightLayout::in_out ? 1 : 0, kept};
    bias_shard = {{out}, 0, kept};
    divided.columns = group;
    adapter.keep_columns(kept, group);
  }
  /// Keeps only the part of the weight for these inputs; other ranks of `group` have the others.
  void keep_rows(const Shard::Range& kept, TensorGroup* group) {
    weight_shard = {shape(), layout == WeightLayout::in_out ? 0 : 1, {kept}};
    divided.rows = group;
    adapter.keep_rows(kept, group);
  }

  Shape shape() const { return layout == WeightLayout::in_out ? Shape{in, out} : Shape{out, in}; }
  Parameter weight_parameter() {
    return {.name = name + ".weight",
            .shape = weight_shard.divided() ? weight_shard.shape() : shape(),
            .initial = Initial::normal(standard_deviation),
            .tensor = &weight,
            .shard = weight_shard,
            .parts = parts_with(".weight"),
            .in_out = layout == WeightLayout::in_out,
            .quantized = keeps_int8 ? &quantized : nullptr};
  }
  Parameter bias_parameter() {
    return {.name = name + ".bias",
            .shape = bias_shard.divided() ? bias_shard.shape() : Shape{out},
            .initial = Initial::constant(0),
            .tensor = &bias,
            .shard = bias_shard,
            .parts = parts_with(".bias")};
  }
  /// `tokens`: see LinearOptions. `dropout`: for the adapter.
  Tensor operator()(const Tensor& x, const Recomputable& recomputable = {},
                    const Shape& tokens = {}, const DropoutSource& dropout = {}) const {
    LinearOptions options = divided;
    options.layout = layout;
    options.recomputable = recomputable;
    options.tokens = tokens;
    if (keeps_int8) options.weight = quantized.recomputable(x.dtype());
    const Tensor y = linear(x, keeps_int8 ? options.weight() : weight, bias, options);
    return adapter ? adapter(y, x, recomputable, dropout) : y;
  }

 private:
  std::vector<StoredPart> parts_with(const char* suffix) const {
    std::vector<StoredPart> named = parts;
    for (StoredPart& part : named)
      part.name += suffix;
    return named;
  }
};

/// LayerNorm, with a bias or without one, or RMSNorm.
struct NormLayer {
  std::string name{};
  std::int64_t width = 0;
  double epsilon = 1e-5;
  NormKind kind = NormKind::layernorm;
  bool has_bias = true;
  Tensor weight{};
  Tensor bias{};

  std::vector<Parameter> parameters() {
    std::vector<Parameter> list{{name + ".weight", {width}, Initial::constant(1), &weight}};
    if (has_bias) list.push_back({name + ".bias", {width}, Initial::constant(0), &bias});
    return list;
  }
  Tensor operator()(const Tensor& x) const {
    return residual_norm(x, {}, {weight, bias, kind}, epsilon).normalized;
  }
  /// `branch` may be none.
  ResidualNorm operator()(const Tensor& stream, const Tensor& branch,
                          TensorGroup* group = nullptr) const {
    return residual_norm(stream, branch, {weight, bias, kind}, epsilon, group);
  }
};

}  // namespace sluice
