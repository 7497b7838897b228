#include "models/mlp/mlp.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/autograd.h"
#include "engine/ops/elementwise.h"

namespace sluice {
namespace {

/// Keeps the variance through a ReLU (He et al., 2015, eq. 10).
double he_deviation(std::int64_t inputs) {
  return std::sqrt(2.0 / static_cast<double>(inputs));
}

}  // namespace

Mlp::Mlp(const MlpConfig& config, const TensorShare& share) : config_(config), share_(share) {
  check(config.in > 0 && config.width > 0 && config.layers > 0 && config.classes > 0 &&
            config.hidden >= 0,
        "an MLP needs positive sizes");
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::int64_t in = layer == 0 ? config.in : config.width, inner = config.hidden;
    if (inner == 0) {
      linears_.push_back(
          {fmt::format("layers.{}.linear", layer), in, config.width, he_deviation(in)});
    } else {
      linears_.push_back({fmt::format("layers.{}.linear_in", layer), in, inner, he_deviation(in)});
      linears_back_.push_back(
          {fmt::format("layers.{}.linear_out", layer), inner, config.width, he_deviation(inner)});
    }
    norms_.push_back({fmt::format("layers.{}.norm", layer), config.width});
  }
  if (share.size > 1) divide();
}

void Mlp::divide() {
  const int ranks = share_.size;
  const std::int64_t inner = config_.hidden;
  if (inner == 0)
    fail(fmt::format("{} ranks: layers of one linear each cannot be divided; give a hidden width",
                     ranks),
         ErrorKind::usage);
  if (inner % ranks != 0)
    fail(fmt::format("{} ranks: the hidden width is {}, which does not divide: {} * {} = {}", ranks,
                     inner, inner / ranks, ranks, inner / ranks * ranks),
         ErrorKind::usage);
  if (ranks > config_.classes)
    fail(fmt::format("{} ranks: there are {} classes, and each rank needs one at least", ranks,
                     config_.classes),
         ErrorKind::usage);
  const Shard::Range mine = part(inner, share_.rank);
  for (LinearLayer& linear : linears_)
    linear.keep_columns({mine}, share_.group);
  for (LinearLayer& linear : linears_back_)
    linear.keep_rows(mine, share_.group);
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
    if (!linears_back_.empty()) {
      append(linears_back_[layer].weight_parameter(), i);
      append(linears_back_[layer].bias_parameter(), i);
    }
    for (Parameter& parameter : norms_[layer].parameters())
      append(std::move(parameter), i);
  }
  if (last == config_.layers) {
    const Shape table{config_.classes, config_.width};
    const Shard rows =
        share_.size > 1 ? Shard(table, 0, {part(config_.classes, share_.rank)}) : Shard();
    append({.name = "classifier.weight",
            .shape = rows.divided() ? rows.shape() : table,
            .initial = Initial::normal(he_deviation(config_.width)),
            .tensor = &classifier_,
            .shard = rows},
           last);
  }
  return list;
}

Tensor Mlp::hidden(const Tensor& x, std::int64_t first, std::int64_t last) const {
  Tensor h = x;
  for (auto layer = static_cast<std::size_t>(first); layer < static_cast<std::size_t>(last);
       ++layer) {
    h = relu(linears_[layer](h));
    if (!linears_back_.empty()) h = linears_back_[layer](h);
    h = norms_[layer](h);
  }
  return h;
}

Tensor Mlp::logits(const Tensor& x) const {
  const Tensor h = hidden(x);
  return logits_of(h, classifier_);
}

std::vector<std::int32_t> Mlp::classify(const Tensor& x) const {
  const NoGrad no_grad;
  Tensor all = logits(x);
  const std::int64_t rows = all.dim(0);
  std::vector<Shard::Range> parts;
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < share_.size; ++rank) {
    parts.push_back(part(config_.classes, rank));
    counts.push_back(rows * (parts.back().end - parts.back().begin));
  }
  if (share_.size > 1) all = share_.group->gather(all, counts, "logits");
  const std::vector<double> values = all.to_host();  // by rank, then row, then class
  std::vector<double> largest(static_cast<std::size_t>(rows), -INFINITY);
  std::vector<std::int32_t> classes(static_cast<std::size_t>(rows));
  auto value = values.begin();
  for (const Shard::Range& columns : parts)
    for (std::size_t row = 0; row < classes.size(); ++row)
      for (std::int64_t column = columns.begin; column < columns.end; ++column, ++value)
        if (*value > largest[row]) {
          largest[row] = *value;
          classes[row] = static_cast<std::int32_t>(column);
        }
  return classes;
}

LinearCrossEntropy Mlp::predict(const Tensor& hidden, const Tensor& targets,
                                const LinearCrossEntropyOptions& options) const {
  LinearCrossEntropyOptions here = options;
  here.group = share_.group;
  here.first_row = part(config_.classes, share_.rank).begin;
  return linear_cross_entropy(hidden, classifier_, targets, here);
}

}  // namespace sluice
