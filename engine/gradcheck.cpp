#include "engine/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>

#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

/// The sampled elements of a leaf: all of them, or a seeded choice that always has both ends.
std::vector<std::size_t> elements_of(std::size_t size, std::size_t samples, std::uint64_t seed) {
  std::vector<std::size_t> all(size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (size <= samples) return all;
  std::mt19937_64 engine(seed);
  for (std::size_t i = 1; i + 1 < samples; ++i) {
    const std::size_t left = size - 1 - i;
    std::swap(all[i], all[i + static_cast<std::size_t>(engine() % left)]);
  }
  std::replace(all.begin() + 1, all.begin() + static_cast<std::ptrdiff_t>(samples) - 1, size - 1,
               size / 2);
  all[samples - 1] = size - 1;
  all.resize(samples);
  return all;
}

std::string line(std::size_t leaf, std::size_t element, double analytic, double numeric) {
  char text[160];
  std::snprintf(text, sizeof text,
                "leaf %zu element %zu: backward %.12g, finite difference %.12g (off by %.3g)\n",
                leaf, element, analytic, numeric, analytic - numeric);
  return text;
}

std::vector<double> random_weights(std::int64_t count) {
  std::vector<double> weights(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = 2 * uniform(random_key(4711, "gradcheck"), i) - 1;
  return weights;
}

}  // namespace

std::string gradcheck(const TensorFunction& function, std::vector<Tensor> leaves,
                      const GradcheckOptions& options) {
  for (auto& leaf : leaves) {
    if (leaf.dtype() != DType::f64) return "gradcheck needs f64 leaves";
    leaf.set_requires_grad(true);
    forget_gradient(leaf);
  }
  std::vector<double> weights;
  {
    const Tensor output = function(leaves);
    if (!output.requires_grad()) return "the output does not require a gradient";
    weights = options.unit_upstream ? std::vector<double>{1} : random_weights(output.size());
    const Tensor upstream =
        options.unit_upstream
            ? Tensor()
            : Tensor::from_host(output.device(), output.shape(), output.dtype(), weights);
    backward(output, upstream);
  }

  const NoGrad no_grad;
  // Hundreds of tiny forward passes: on a busy machine every parallel region would cost more than
  // all of its work.
  const cpu::ThreadLimit one_thread(1);
  const auto weighted_sum = [&] {
    const std::vector<double> out = function(leaves).to_host();
    long double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i)
      sum += out[i] * weights.at(i);
    return static_cast<double>(sum);
  };
  std::string report;
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (!leaves[leaf].grad()) {
      report += "leaf " + std::to_string(leaf) + " has no gradient\n";
      continue;
    }
    const std::vector<double> analytic = leaves[leaf].grad().to_host();
    double* values = leaves[leaf].view().data<double>();
    int reported = 0;
    for (const auto element : elements_of(analytic.size(), options.samples, leaf + 1)) {
      const double before = values[element];
      values[element] = before + options.step;
      const double above = weighted_sum();
      values[element] = before - options.step;
      const double below = weighted_sum();
      values[element] = before;
      const double numeric = (above - below) / (2 * options.step);
      // Written so that a NaN on either side is reported.
      if (!(std::abs(analytic[element] - numeric) <= options.tolerance) && reported++ < 4)
        report += line(leaf, element, analytic[element], numeric);
    }
  }
  return report;
}

}  // namespace sluice
