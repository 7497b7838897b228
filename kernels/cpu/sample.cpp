#include "kernels/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

/// A token and its logit as one number: a larger logit gives a larger number, and among equal
/// logits the first token does. The order of keys has no ties.
using Key = std::uint64_t;

Key key_of(float logit, std::int64_t token) {
  const auto bits = std::bit_cast<std::uint32_t>(logit == 0 ? 0.0f : logit);  // -0 becomes 0
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(token));
}
std::int32_t token_of(Key key) {
  return static_cast<std::int32_t>(0xFFFFFFFFu - static_cast<std::uint32_t>(key));
}

/// The logits of a row, and the weight of each token relative to the most probable one.
struct Row {
  std::span<const float> logits;
  float top;
  double temperature;

  double weight(std::size_t token) const {
    return std::exp(static_cast<double>(logits[token] - top) / temperature);
  }
};

/// Moves the `count` largest of `keys` to its front, in descending order.
void sort_largest(std::span<Key> keys, std::size_t count) {
  const auto end = keys.begin() + static_cast<std::ptrdiff_t>(count);
  if (count < keys.size()) std::nth_element(keys.begin(), end, keys.end(), std::greater());
  std::sort(keys.begin(), end, std::greater());
}

std::vector<double> weights_of(const Row& row) {
  std::vector<double> weights(row.logits.size());
  constexpr std::int64_t grain = 1 << 13;
  cpu::parallel_ranges(
      static_cast<std::int64_t>(weights.size()), grain, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
          weights[i] = row.weight(i);
      });
  return weights;
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Draws from all tokens; needs no sorting.
std::int32_t draw_of_all(const Row& row, double point) {
  const std::vector<double> weights = weights_of(row);
  const double total = sum_of(weights);
  double sum = 0;
  for (std::size_t token = 0; token < weights.size(); ++token) {
    sum += weights[token];
    if (sum > point * total) return static_cast<std::int32_t>(token);
  }
  // A point just below 1 may have been rounded up to it.
  return static_cast<std::int32_t>(std::ranges::max_element(row.logits) - row.logits.begin());
}

/// Draws from the tokens that top_k and top_p leave.
std::int32_t draw_of_candidates(const Row& row, double point, const SampleToken& op) {
  std::vector<Key> keys(row.logits.size());
  for (std::size_t token = 0; token < keys.size(); ++token)
    keys[token] = key_of(row.logits[token], static_cast<std::int64_t>(token));
  const auto weight = [&](Key key) { return row.weight(static_cast<std::size_t>(token_of(key))); };
  std::size_t sorted = 0;
  double total = 0;
  if (op.top_k > 0 && op.top_k < static_cast<std::int64_t>(keys.size())) {
    sorted = static_cast<std::size_t>(op.top_k);
    sort_largest(keys, sorted);
    keys.resize(sorted);
    for (const Key key : keys)
      total += weight(key);
  } else {
    total = sum_of(weights_of(row));
  }
  // Takes the fewest that reach top_p, and sorts at most a few times as many.
  std::vector<double> weights;
  std::vector<std::size_t> order;
  double kept = 0;
  while (weights.size() < keys.size() &&
         (weights.empty() || kept < static_cast<double>(op.top_p) * total)) {
    if (weights.size() == sorted) {
      const std::size_t more =
          std::min(keys.size() - sorted, std::max<std::size_t>(64, 3 * sorted));
      sort_largest(std::span(keys).subspan(sorted), more);
      sorted += more;
    }
    order.push_back(weights.size());
    weights.push_back(weight(keys[weights.size()]));
    kept += weights.back();
  }
  std::ranges::sort(order, {}, [&](std::size_t i) { return token_of(keys[i]); });
  const double all = sum_of(weights);
  double sum = 0;
  for (const std::size_t i : order) {
    sum += weights[i];
    if (sum > point * all) return token_of(keys[i]);
  }
  return token_of(keys[order.back()]);
}

std::int32_t draw(std::span<const float> logits, double point, const SampleToken& op) {
  const Row row{logits, std::ranges::max(logits), static_cast<double>(op.temperature)};
  const bool all =
      (op.top_k == 0 || op.top_k >= static_cast<std::int64_t>(logits.size())) && op.top_p >= 1;
  return all ? draw_of_all(row, point) : draw_of_candidates(row, point, op);
}

/// Returns true if the logits make a distribution: none is NaN or +infinity, some is finite.
bool can_be_drawn(std::span<const float> logits) {
  constexpr float most = std::numeric_limits<float>::max();
  int bad = 0, finite = 0;  // without an exit, so that the loop takes several logits at a time
  for (const float logit : logits) {
    bad |= static_cast<int>(!(logit <= most));
    finite |= static_cast<int>(logit >= -most);
  }
  return bad == 0 && finite != 0;
}

}  // namespace

void launch_cpu(const SampleToken& op) {
  const auto vocabulary = static_cast<std::size_t>(op.logits.dim(-1));
  auto* tokens = op.tokens.data<std::int32_t>();
  for (std::int64_t row = 0; row < op.logits.rows(); ++row) {
    const std::span mine(op.logits.data<float>() + row * op.logits.dim(-1), vocabulary);
    if (!can_be_drawn(mine))
      tokens[row] = -1;
    else if (op.temperature > 0)
      tokens[row] = draw(mine, static_cast<double>(op.points.data<float>()[row]), op);
    else
      tokens[row] = static_cast<std::int32_t>(std::ranges::max_element(mine) - mine.begin());
  }
}

}  // namespace sluice
