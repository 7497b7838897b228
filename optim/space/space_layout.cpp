#include "optim/space/space_layout.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// The number of elements in a block of a matrix: whole rows.
std::int64_t block_of(const SpaceLayout::Slot& slot) {
  const std::int64_t row = slot.shape.back();
  return (SpaceLayout::block_target + row - 1) / row * row;
}

}  // namespace

SpaceLayout::SpaceLayout(const std::vector<Parameter>& all, const LayoutOptions& options) {
  bool on_host = false, by_cpu = false, speculative = false;
  bool in_small_stretch = false, in_divided = false;
  int section = 0;
  for (const Parameter& parameter : all) {
    on_host =
        on_host || (!options.first_on_host.empty() && parameter.name == options.first_on_host);
    by_cpu = by_cpu || (!options.first_by_cpu.empty() && parameter.name == options.first_by_cpu);
    check(on_host || !by_cpu, "the CPU updates state that rests in host memory");
    speculative = speculative || (!options.first_speculative.empty() &&
                                  parameter.name == options.first_speculative);
    check(on_host || !speculative, "only what visits the device is updated speculatively");
    const std::int64_t elements = element_count(parameter.shape);
    const bool matrix = parameter.shape.size() >= 2;
    // The size of the whole tensor decides, so that ranks with shards of any size store it alike.
    const Shard& shard = parameter.shard;
    const bool large =
        matrix && (shard.divided() ? element_count(shard.whole()) : elements) >= bulk_threshold;
    const bool bulk = large && !parameter.embedding;
    const bool narrow = bulk && options.narrow_gradients;
    std::int64_t& gradient_size = narrow ? narrow_size : wide_size;
    const Slot& slot = slots.emplace_back(Slot{.name = parameter.name,
                                               .shape = parameter.shape,
                                               .offset = size,
                                               .size = elements,
                                               .decay = matrix,
                                               .bulk = bulk,
                                               .on_host = bulk && on_host,
                                               .by_cpu = bulk && by_cpu,
                                               .speculative = bulk && speculative && !by_cpu,
                                               .gradient_offset = gradient_size,
                                               .initial = parameter.initial,
                                               .tensor = parameter.tensor,
                                               .shard = parameter.shard});
    const bool divided = parameter.shard.divided();
    if (large || !in_small_stretch || parameter.section != section || divided != in_divided)
      stretches.push_back({.offset = size,
                           .size = 0,
                           .gradient_offset = gradient_size,
                           .block = large ? block_of(slot) : block_target,
                           .narrow = narrow,
                           .divided = divided});
    in_small_stretch = !large;
    in_divided = divided;
    section = parameter.section;
    stretches.back().size += padded(elements);
    size += padded(elements);
    gradient_size += padded(elements);
    parameters += elements;
  }
  check(on_host || options.first_on_host.empty(),
        "no parameter has the name from which on state was to rest in host memory");
  check(by_cpu || options.first_by_cpu.empty(),
        "no parameter has the name from which on the CPU was to update state");
  check(speculative || options.first_speculative.empty(),
        "no parameter has the name from which on updates were to be speculative");
}

}  // namespace sluice
