#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/ops/dropout.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/linear/linear_cross_entropy.h"
#include "engine/rng.h"
#include "parallel/pipeline/stage.h"

// A model for pipeline tests: a residual pair of linear layers per stage, with dropout.

namespace sluice::test {

constexpr std::int64_t width = 8, inner = 12, classes = 5;

/// Returns numbers in [-0.5, 0.5) that depend on `name`.
inline std::vector<double> made_up(const std::string& name, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  const std::uint64_t key = random_key(3, name);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = uniform(key, i) - 0.5;
  return values;
}

/// The data of the micro-batches; the test changes it between steps.
struct SmallData {
  std::int64_t rows = 3;
  std::uint64_t step = 0;
};

class SmallStage final : public Stage {
 public:
  SmallStage(int number, int stages, const SmallData& data, DevicePtr device)
      : number_(number), last_(number + 1 == stages), data_(data), device_(std::move(device)) {
    leaf({width, inner});
    leaf({inner});
    leaf({inner, width});
    leaf({width});
    if (last_) leaf({classes, width});
  }

  Boundary input(int) const override { return {{data_.rows, width}, DType::f32}; }
  Boundary output(int) const override { return {{data_.rows, width}, DType::f32}; }

  Tensor forward(int micro_batch, const Tensor& input) override {
    ++calls[micro_batch];
    if (before_forward) before_forward(micro_batch);
    const Tensor in = number_ == 0 ? data(micro_batch) : input;
    const DropoutSource source{.seed = 7,
                               .step = data_.step,
                               .first_sample = micro_batch * data_.rows,
                               .probability = 0.25F};
    const auto site = static_cast<std::uint64_t>(number_);
    Tensor x = gelu(linear(in, leaves[0], leaves[1]));
    x = add(in, dropout(linear(x, leaves[2], leaves[3]), source.mask(site)));
    if (!last_) return x;
    std::vector<std::int32_t> targets;
    for (std::int64_t row = 0; row < data_.rows; ++row)
      targets.push_back(static_cast<std::int32_t>(
          (row + micro_batch * data_.rows + static_cast<std::int64_t>(data_.step)) % classes));
    return linear_cross_entropy(x, leaves[4], Tensor::from_tokens(device_, {data_.rows}, targets),
                                {.scale = 1.0 / 64})
        .loss;
  }

  /// Returns the gradients of all leaves, concatenated.
  std::vector<double> gradients() const {
    std::vector<double> all;
    for (const Tensor& one : leaves) {
      const auto values = one.grad().to_host();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  std::vector<double> weights() const {
    std::vector<double> all;
    for (const Tensor& one : leaves) {
      const auto values = one.to_host();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  void forget() const {
    for (const Tensor& one : leaves)
      forget_gradient(one);
  }
  /// Applies plain gradient descent.
  void update() const {
    for (const Tensor& one : leaves) {
      const auto gradient = one.grad().to_host(), weight = one.to_host();
      std::vector<float> next(weight.size());
      for (std::size_t i = 0; i < next.size(); ++i)
        next[i] = static_cast<float>(weight[i]) - 0.5F * static_cast<float>(gradient[i]);
      one.copy_bytes_from(std::as_bytes(std::span(next)));
    }
  }

  std::vector<Tensor> leaves;
  std::map<int, int> calls;  ///< of forward, by micro-batch
  std::function<void(int micro_batch)> before_forward;

 private:
  void leaf(const Shape& shape) {
    const std::string name = std::to_string(number_) + "." + std::to_string(leaves.size());
    leaves.push_back(
        Tensor::from_host(device_, shape, DType::f32, made_up(name, element_count(shape))));
    leaves.back().set_requires_grad(true);
    // Gradients are allocated up front, so that later memory of a stage is for micro-batches alone.
    set_gradient_buffer(leaves.back(), Tensor::zeros(device_, shape, DType::f32));
  }
  Tensor data(int micro_batch) const {
    const std::string name =
        "data " + std::to_string(micro_batch) + " of step " + std::to_string(data_.step);
    return Tensor::from_host(device_, {data_.rows, width}, DType::f32,
                             made_up(name, data_.rows * width));
  }

  int number_;
  bool last_;
  const SmallData& data_;
  DevicePtr device_;
};

}  // namespace sluice::test
