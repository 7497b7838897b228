#include "apps/train/memory_choice.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {

std::vector<Residency> residency_of(const MemoryChoice& choice) {
  const std::int64_t streamed = choice.streamed_blocks() - choice.speculative_blocks;
  check(choice.resident_blocks >= 0 && streamed >= 0 && choice.speculative_blocks >= 0 &&
            choice.cpu_blocks >= 0 && choice.host_blocks >= 0,
        "the state of each block rests in one place");
  std::vector<Residency> all;
  all.insert(all.end(), static_cast<std::size_t>(choice.resident_blocks), Residency::device);
  all.insert(all.end(), static_cast<std::size_t>(streamed), Residency::streamed);
  all.insert(all.end(), static_cast<std::size_t>(choice.speculative_blocks),
             Residency::speculative);
  all.insert(all.end(), static_cast<std::size_t>(choice.cpu_blocks), Residency::cpu);
  all.insert(all.end(), static_cast<std::size_t>(choice.host_blocks), Residency::host);
  return all;
}

std::string to_flags(const MemoryChoice& c) {
  std::string flags =
      fmt::format("--micro-batch {} --recompute {} --state-layout {} --gradients {}", c.micro_batch,
                  to_string(c.recompute), name_of(c.layout), c.narrow_gradients ? "bf16" : "fp32");
  if (c.head_chunk != MemoryChoice().head_chunk)
    flags += fmt::format(" --head-chunk {}", c.head_chunk);
  flags += c.streams() ? fmt::format(" --resident-blocks {}", c.resident_blocks) : " --offload off";
  // The chunk size matters without streaming too: rounding up to chunks takes memory.
  if (c.streams() || c.staging.chunk != Staging().chunk)
    flags += fmt::format(" --stream-chunk {}", c.staging.chunk);
  if (c.streams())
    flags += fmt::format(" --staging-chunks {} --cpu-blocks {}", c.staging.places, c.cpu_blocks);
  if (c.host_blocks > 0) flags += fmt::format(" --host-blocks {}", c.host_blocks);
  if (c.cpu_tables) flags += " --cpu-tables";
  if (c.speculative_blocks > 0)
    flags += fmt::format(" --speculative-blocks {}", c.speculative_blocks);
  return flags;
}

}  // namespace sluice
