#include "kernels/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

/// The candidates, most probable first, with their weights relative to it.
struct Candidates {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
};

Candidates most_probable(const float* logits, std::int64_t vocabulary, const SampleToken& op) {
  Candidates c;
  c.ids.resize(static_cast<std::size_t>(vocabulary));
  std::iota(c.ids.begin(), c.ids.end(), 0);
  std::ranges::stable_sort(c.ids,
                           [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  if (op.top_k > 0 && op.top_k < vocabulary) c.ids.resize(static_cast<std::size_t>(op.top_k));
  double total = 0;
  for (const std::int32_t id : c.ids) {
    c.weights.push_back(std::exp(static_cast<double>(logits[id] - logits[c.ids[0]]) /
                                 static_cast<double>(op.temperature)));
    total += c.weights.back();
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < c.ids.size() && (count == 0 || kept < static_cast<double>(op.top_p) * total))
    kept += c.weights[count++];
  c.ids.resize(count);
  c.weights.resize(count);
  return c;
}

std::int32_t draw(const float* logits, std::int64_t vocabulary, double point,
                  const SampleToken& op) {
  const Candidates c = most_probable(logits, vocabulary, op);
  std::vector<std::size_t> order(c.ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return c.ids[i]; });
  const double total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
  double sum = 0;
  for (const std::size_t i : order) {
    sum += c.weights[i];
    if (sum > point * total) return c.ids[i];
  }
  return c.ids[order.back()];
}

}  // namespace

void launch_cpu(const SampleToken& op) {
  const std::int64_t vocabulary = op.logits.dim(-1);
  const float* logits = op.logits.data<float>();
  auto* tokens = op.tokens.data<std::int32_t>();
  cpu::parallel_for(op.logits.rows(), [&](std::int64_t row) {
    const float* mine = logits + row * vocabulary;
    tokens[row] =
        op.temperature > 0
            ? draw(mine, vocabulary, static_cast<double>(op.points.data<float>()[row]), op)
            : static_cast<std::int32_t>(std::max_element(mine, mine + vocabulary) - mine);
  });
}

}  // namespace sluice
