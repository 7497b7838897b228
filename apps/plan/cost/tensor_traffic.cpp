#include "apps/plan/cost/tensor_traffic.h"

#include <algorithm>

#include "apps/plan/cost/muon_cost.h"
#include "engine/ops/linear/linear_cross_entropy.h"

namespace sluice {

TensorTraffic::Kind& TensorTraffic::Kind::operator+=(const Kind& other) {
  operations += other.operations;
  bytes += other.bytes;
  return *this;
}

namespace {

TensorTraffic::Kind all_of(const TensorTraffic::Streams& streams) {
  TensorTraffic::Kind all = streams.forward;
  (all += streams.again) += streams.backward;
  return all;
}

void add(TensorTraffic::Streams& streams, const TensorTraffic::Streams& others) {
  streams.forward += others.forward;
  streams.again += others.again;
  streams.backward += others.backward;
}

}  // namespace

TensorTraffic::Kind TensorTraffic::all_sums() const {
  Kind all = sums.forward;
  ((all += sums.again) += sums.backward) += sums.head;
  return all;
}

TensorTraffic::Kind TensorTraffic::all_streams() const {
  return all_of(streams);
}

TensorTraffic::Kind TensorTraffic::all_key_values() const {
  return all_of(key_values);
}

TensorTraffic::Kind TensorTraffic::all() const {
  Kind all = all_sums();
  ((((all += all_streams()) += all_key_values()) += norms) += softmax) += updates;
  return all;
}

double TensorTraffic::sent(std::int64_t ranks) const {
  const auto n = static_cast<double>(ranks);
  const std::uint64_t reduced =
      (divided_tokens ? 0 : all_sums().bytes) + norms.bytes + updates.bytes;
  return (n - 1) / n * static_cast<double>(reduced + all().bytes);
}

TensorTraffic& TensorTraffic::operator+=(const TensorTraffic& other) {
  divided_tokens |= other.divided_tokens;
  sums.forward += other.sums.forward;
  sums.again += other.sums.again;
  sums.backward += other.sums.backward;
  sums.head += other.sums.head;
  add(streams, other.streams);
  add(key_values, other.key_values);
  norms += other.norms;
  softmax += other.softmax;
  updates += other.updates;
  return *this;
}

TensorTraffic tensor_traffic(const DecoderConfig& config, const DecoderPart& part,
                             const MemoryChoice& choice, const TensorTask& task) {
  if (task.shards.ranks == 1) return {};
  const bool embeds = part.first == 0, predicts = part.last == config.n_layer;
  const std::int64_t blocks = part.last - part.first, tokens = task.rows * task.seq_len;
  // A stage that stashes only its input runs forward twice, but the last stage only once.
  const bool twice = task.stash == Stash::input && !predicts;
  const auto& all_blocks = choice.placement.blocks;
  const std::int64_t recomputed =
      std::count_if(all_blocks.begin() + part.first, all_blocks.begin() + part.last,
                    [](const Placement& block) { return recomputes_block(block.recompute); });

  const auto of = [&](std::int64_t operations, std::int64_t elements, DType dtype) {
    const std::int64_t all = operations * task.micro_batches;
    return TensorTraffic::Kind{all, static_cast<std::uint64_t>(all * elements) * size_of(dtype)};
  };
  const auto streams = [&](std::int64_t operations) {
    return of(operations, tokens * config.n_embd, task.dtype);
  };
  const DType wide = accumulator_of(task.dtype);
  const std::int64_t ends = 2 * blocks + (embeds ? 1 : 0);
  TensorTraffic traffic{.divided_tokens = task.shards.divide_tokens,
                        .sums = {.forward = streams(ends),
                                 .again = streams(2 * recomputed + (twice ? ends : 0)),
                                 .backward = streams(2 * blocks),
                                 .head = streams(predicts ? 1 : 0)}};
  if (task.shards.divide_tokens) {
    const std::int64_t inputs = 2 * blocks;
    traffic.streams = {.forward = streams(inputs + (predicts ? 1 : 0)),
                       .again = streams(2 * recomputed + (twice ? inputs : 0)),
                       .backward = streams(inputs + ends)};
    traffic.norms = of(config.block_norms() * blocks + (predicts ? 1 : 0),
                       config.norm_vectors() * config.n_embd, wide);
  }
  if (task.shards.ranks > config.kv_heads()) {  // they share heads of k and v
    const auto heads = [&](std::int64_t operations) {
      return of(operations, tokens * 2 * config.key_width(), task.dtype);
    };
    traffic.key_values = {.forward = heads(blocks),
                          .again = heads(recomputed + (twice ? blocks : 0)),
                          .backward = heads(blocks)};
  }
  // Ranks always divide the heads of q and k.
  if (config.query_key_norm) traffic.norms += of(blocks, 2 * config.width_of_head(), wide);
  if (predicts) {
    traffic.softmax = of(1, tokens * 3 * task.shards.ranks, wide);
    traffic.softmax.operations *= head_chunks(choice, tokens);
  }
  if (task.orthogonalizes) {
    const auto [operations, bytes] = MuonCost(config, task.shards.ranks, task.dtype).sums;
    const auto owners = static_cast<std::uint64_t>(task.owners);
    traffic.updates = {(blocks * operations + task.owners - 1) / task.owners,
                       (static_cast<std::uint64_t>(blocks) * bytes + owners - 1) / owners};
  }
  return traffic;
}

double TensorTimes::gathers(const TensorTraffic::Kind& kind) const {
  if (kind.operations == 0) return 0;
  const auto operations = static_cast<double>(kind.operations);
  return operations * all_gather_seconds(static_cast<double>(kind.bytes) / operations,
                                         shards_.ranks, shards_.link);
}

double TensorTimes::all(const TensorTraffic& traffic) const {
  return sums(traffic.all_sums()) + gathers(traffic.all_streams()) +
         gathers(traffic.all_key_values()) + all_reduces(traffic.norms) + gathers(traffic.softmax) +
         all_reduces(traffic.updates);
}

}  // namespace sluice
