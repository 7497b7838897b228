#include "parallel/data_parallel/model_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace sluice {
namespace {

struct Numbered {
  SpaceLayout::Stretch stretch;
  std::string_view name;  ///< the name of its first slot
  std::size_t first_block;
};

std::size_t blocks_of(const SpaceLayout& layout) {
  std::size_t blocks = 0;
  for (const auto& stretch : layout.stretches)
    blocks += static_cast<std::size_t>(stretch.blocks());
  return blocks;
}

/// Numbers the blocks of all stretches, starting with `block`. The names are those of `layout`.
std::vector<Numbered> numbered(const SpaceLayout& layout, std::size_t block = 0) {
  std::vector<Numbered> all;
  for (const auto& stretch : layout.stretches) {
    const auto slot =
        std::ranges::lower_bound(layout.slots, stretch.offset, {}, &SpaceLayout::Slot::offset);
    all.push_back({stretch, slot->name, block});
    block += static_cast<std::size_t>(stretch.blocks());
  }
  return all;
}

}  // namespace

ModelNorm::ModelNorm(ParameterSpace& space, std::span<const SpaceLayout> shards,
                     const Position& place, Communicator& ranks)
    : space_(space), ranks_(ranks) {
  const auto mine = static_cast<std::size_t>(place.shard);
  std::size_t before = 0, all = 0;
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    if (shard == mine) before = all;
    all += blocks_of(shards[shard]);
  }
  const auto there = numbered(shards[mine], before);
  auto next = there.begin();  // a rank's part has the order of the model
  for (const Numbered& here : numbered(space.layout())) {
    if (here.name == place.copy || (place.shard > 0 && !here.stretch.divided)) continue;
    next = std::ranges::find(next, there.end(), here.name, &Numbered::name);
    check(next != there.end() && next->stretch.size == here.stretch.size &&
              next->stretch.block == here.stretch.block,
          "a rank's part of the model is laid out in another way than the model");
    stretches_.push_back(
        {here.first_block, next->first_block, static_cast<std::size_t>(here.stretch.blocks())});
  }
  const MemoryScope scope(*space.device(), MemoryUse::gradients);
  partials_ = Tensor::empty(space.device(), {static_cast<std::int64_t>(all)}, DType::f64);
  // A plan has no numbers, and a model of 175B parameters has 10 million blocks.
  if (space.device()->device().kind != DeviceKind::meta) sums_.resize(all);
}

const Tensor& ModelNorm::clip_gradients(const std::vector<SpaceRange>& ranges, double limit,
                                        double loss_scale) {
  const Tensor& squares = space_.sum_squares(ranges);
  if (sums_.empty()) return space_.clip_factor(partials_, limit, loss_scale);
  const auto mine = squares.to_host();
  std::ranges::fill(sums_, 0.0);
  for (const auto& [here, there, blocks] : stretches_)
    std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(here), blocks,
                sums_.begin() + static_cast<std::ptrdiff_t>(there));
  // One rank has the sum of each block and the others have zero, so adding up is exact.
  ranks_
      .all_reduce({reinterpret_cast<std::byte*>(sums_.data()),
                   DType::f64,
                   {static_cast<std::int64_t>(sums_.size())}},
                  {.label = "gradient norm", .any_order = true})
      ->wait();
  partials_.copy_bytes_from(std::as_bytes(std::span(sums_)));
  return space_.clip_factor(partials_, limit, loss_scale);
}

}  // namespace sluice
