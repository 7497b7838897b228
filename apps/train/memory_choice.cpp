#include "apps/train/memory_choice.h"

#include <fmt/format.h>

namespace sluice {

MemoryChoice without_recompute(MemoryChoice choice) {
  choice.placement.set_recompute(Recompute::none);
  return choice;
}

std::string to_flags(const MemoryChoice& c) {
  std::string flags =
      fmt::format("--micro-batch {} --placement {} --state-layout {} --gradients {}", c.micro_batch,
                  to_string(c.placement), name_of(c.layout), c.narrow_gradients ? "bf16" : "fp32");
  if (c.head_chunk != MemoryChoice().head_chunk)
    flags += fmt::format(" --head-chunk {}", c.head_chunk);
  // The chunk size matters without streaming too: rounding up to chunks takes memory.
  if (c.offloads_state() || c.staging.chunk != Staging().chunk)
    flags += fmt::format(" --stream-chunks {}*{}", c.staging.chunk, c.staging.places);
  return flags;
}

}  // namespace sluice
