#include "models/lora/adapter.h"

#include <algorithm>
#include <cmath>

#include "engine/ops/dropout.h"

namespace sluice {

Adapter::Adapter(const LoraConfig& config, const std::string& prefix, std::int64_t inputs,
                 const std::vector<StoredPart>& parts, std::uint64_t site)
    : rank_(config.rank), inputs_(inputs), site_(site) {
  if (rank_ == 0) return;
  weights_.scale = config.scale();
  std::int64_t first = 0;
  for (const auto& [name, outputs] : parts) {
    if (config.adapts(name)) {
      layers_.push_back({prefix + name, outputs});
      weights_.parts.push_back({first, outputs});
    }
    first += outputs;
  }
}

void Adapter::keep_columns(const std::vector<Shard::Range>& kept, TensorGroup* group) {
  weights_.columns = group;
  std::int64_t above = 0;  // rows of the matrices B of the parts before
  for (LowRankPart& part : weights_.parts) {
    const std::int64_t begin = part.first, end = part.first + part.columns;
    std::int64_t before = 0, here = 0;
    for (const Shard::Range& range : kept) {
      before += std::max<std::int64_t>(0, std::min(range.end, begin) - range.begin);
      const std::int64_t from = std::max(range.begin, begin), to = std::min(range.end, end);
      if (from >= to) continue;
      b_rows_.push_back({above + from - begin, above + to - begin});
      here += to - from;
    }
    above += part.columns;
    part = {before, here};
  }
}

void Adapter::keep_rows(const Shard::Range& kept, TensorGroup* group) {
  weights_.rows = group;
  a_columns_ = {kept};
}

std::vector<Parameter> Adapter::parameters() {
  std::int64_t outputs = 0;
  std::vector<StoredPart> a_parts, b_parts;
  for (const auto& [name, rows] : layers_) {
    outputs += rows;
    a_parts.push_back({name + ".lora_A.weight", rank_});
    b_parts.push_back({name + ".lora_B.weight", rows});
  }
  const auto count = static_cast<std::int64_t>(layers_.size());
  const std::string& first = layers_.front().name;
  // PEFT begins with A uniform within 1 / sqrt(inputs), which has this deviation, and with B zero,
  // so that the first forward pass is the model's own.
  const double deviation = 1 / std::sqrt(3.0 * static_cast<double>(inputs_));
  const Shape a{count * rank_, inputs_}, b{outputs, rank_};
  const Shard a_shard = a_columns_.empty() ? Shard() : Shard(a, 1, a_columns_);
  const Shard b_shard = b_rows_.empty() ? Shard() : Shard(b, 0, b_rows_);
  return {{.name = first + ".lora_A.weight",
           .shape = a_shard.divided() ? a_shard.shape() : a,
           .initial = Initial::normal(deviation),
           .tensor = &weights_.a,
           .shard = a_shard,
           .parts = a_parts},
          {.name = first + ".lora_B.weight",
           .shape = b_shard.divided() ? b_shard.shape() : b,
           .initial = Initial::constant(0),
           .tensor = &weights_.b,
           .shard = b_shard,
           .parts = b_parts}};
}

Tensor Adapter::operator()(const Tensor& y, const Tensor& x, const Recomputable& recomputable,
                           const DropoutSource& dropout) const {
  const DropoutMask mask = dropout.mask(site_, dropout.adapters);
  const Tensor read = sluice::dropout(x, mask);
  const bool dropped = dropout.adapters > 0;
  return add_low_rank(y, read, weights_, dropped ? Recomputable() : recomputable);
}

}  // namespace sluice
