#include "tests/support/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "engine/autograd.h"
#include "kernels/base/dtype.h"

namespace sluice::test {
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

}  // namespace

Values random_values(std::int64_t count, std::uint64_t seed, double scale) {
  std::mt19937_64 engine(seed);
  Values values(static_cast<std::size_t>(count));
  for (auto& value : values)
    value = (static_cast<double>(engine() >> 11) * 0x1p-52 - 1.0) * scale;
  return values;
}

double relative_l2(const Values& actual, const Values& expected) {
  if (actual.size() != expected.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-12;
    case DType::f32:
      return 1e-5;
    case DType::bf16:
      return 4e-3;
    case DType::f16:
      return 1e-3;
    case DType::i32:
    case DType::i16:
    case DType::u8:
      break;
  }
  return 0;
}

void Array::set(const Values& values) {
  dispatch_floating(dtype_, [&]<class T>() {
    for (std::size_t i = 0; i < count_; ++i) {
      if constexpr (sizeof(T) == 2)
        data<T>()[i] = T(static_cast<float>(values[i]));
      else
        data<T>()[i] = static_cast<T>(values[i]);
    }
  });
}

Values Array::values() const {
  Values result(count_);
  dispatch_floating(dtype_, [&]<class T>() {
    for (std::size_t i = 0; i < count_; ++i) {
      T element;
      std::memcpy(&element, bytes_.data() + i * sizeof(T), sizeof(T));
      if constexpr (sizeof(T) == 2)
        result[i] = static_cast<float>(element);
      else
        result[i] = static_cast<double>(element);
    }
  });
  return result;
}

std::string gradcheck(const TensorFunction& function, std::vector<Tensor> leaves,
                      const GradcheckOptions& options) {
  for (auto& leaf : leaves) {
    if (leaf.dtype() != DType::f64) return "gradcheck needs f64 leaves";
    leaf.set_requires_grad(true);
    forget_gradient(leaf);
  }
  Values weights;
  {
    const Tensor output = function(leaves);
    if (!output.requires_grad()) return "the output does not require a gradient";
    weights = options.unit_upstream ? Values(1, 1.0) : random_values(output.size(), 4711);
    const Tensor upstream =
        options.unit_upstream
            ? Tensor()
            : Tensor::from_host(output.device(), output.shape(), output.dtype(), weights);
    backward(output, upstream);
  }

  const NoGrad no_grad;
  // Hundreds of tiny forward passes: on a busy machine every parallel region would cost more than
  // all of its work.
  const ThreadCount one_thread(1);
  const auto weighted_sum = [&] {
    const Values out = function(leaves).to_host();
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
    const Values analytic = leaves[leaf].grad().to_host();
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

}  // namespace sluice::test
