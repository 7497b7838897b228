#include "apps/train/tensor_traffic.h"

#include <algorithm>

#include "engine/ops/linear_cross_entropy.h"

namespace sluice {

TensorTraffic::Kind& TensorTraffic::Kind::operator+=(const Kind& other) {
  operations += other.operations;
  bytes += other.bytes;
  return *this;
}

TensorTraffic::Kind TensorTraffic::all_reduces() const {
  Kind all = forward;
  ((all += again) += backward) += head;
  return all;
}

double TensorTraffic::sent(std::int64_t ranks) const {
  const auto n = static_cast<double>(ranks);
  return (n - 1) / n *
         (2 * static_cast<double>(all_reduces().bytes) + static_cast<double>(gathers.bytes));
}

TensorTraffic& TensorTraffic::operator+=(const TensorTraffic& other) {
  forward += other.forward;
  again += other.again;
  backward += other.backward;
  head += other.head;
  gathers += other.gathers;
  return *this;
}

TensorTraffic tensor_traffic(const GPT2Config& config, const GPT2Part& part, const Mesh& mesh,
                             const MemoryChoice& choice, Stash stash, std::int64_t rows,
                             std::int64_t seq_len, DType dtype, std::int64_t micro_batches) {
  if (mesh.tp == 1) return {};
  const bool embeds = part.first == 0, predicts = part.last == config.n_layer;
  const std::int64_t blocks = part.last - part.first, tokens = rows * seq_len;
  const std::int64_t forward = 2 * blocks + (embeds ? 1 : 0);
  // A stage that keeps its input alone goes forward once more; the last one only then.
  const bool twice = stash == Stash::input && !predicts;
  const std::int64_t recomputed =
      std::count(choice.recompute.begin() + part.first, choice.recompute.begin() + part.last,
                 Recompute::block);
  const std::int64_t chunk = LinearCrossEntropyOptions().chunk;

  const auto sums = [&](std::int64_t operations) {
    const std::int64_t all = operations * micro_batches;
    return TensorTraffic::Kind{
        all, static_cast<std::uint64_t>(all * tokens * config.n_embd) * size_of(dtype)};
  };
  TensorTraffic traffic{.forward = sums(forward),
                        .again = sums(2 * recomputed + (twice ? forward : 0)),
                        .backward = sums(2 * blocks)};
  if (!predicts) return traffic;
  traffic.head = sums(1);
  traffic.gathers = {micro_batches * ((tokens + chunk - 1) / chunk),
                     static_cast<std::uint64_t>(micro_batches * tokens * 3 * mesh.tp) *
                         size_of(accumulator_of(dtype))};
  return traffic;
}

}  // namespace sluice
