#include "optim/space/initial_values.h"

#include <algorithm>

#include "engine/rng.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void initial_values(const SpaceLayout::Slot& slot, std::uint64_t seed, std::int64_t first,
                    std::span<float> out) {
  std::ranges::fill(out, static_cast<float>(slot.initial.value));
  if (slot.initial.standard_deviation == 0) return;
  const std::uint64_t key = random_key(seed, slot.name);
  const auto count = static_cast<std::int64_t>(out.size());
  slot.shard.for_each_run(
      first, count, [&](std::int64_t at, std::int64_t index, std::int64_t length) {
        const auto part =
            out.subspan(static_cast<std::size_t>(at - first), static_cast<std::size_t>(length));
        cpu::parallel_ranges(length, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
          fill_normal(
              key, static_cast<std::uint64_t>(index + begin), slot.initial.standard_deviation,
              part.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
        });
      });
}

}  // namespace sluice
