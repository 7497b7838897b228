#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder/recompute.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// The placement of a transformer block: which of its weights, gradients and optimizer state are
/// offloaded, whether the device or the CPU updates them, and what its backward pass recomputes.
struct Placement {
  Residency residency = Residency::device;
  Recompute recompute = Recompute::none;

  bool operator==(const Placement&) const = default;
};

/// The placement of each block, from the lowest.
struct ModelPlacement {
  std::vector<Placement> blocks{};
  /// The optimizer state of embeddings and vocabulary head is in host memory; the CPU updates it.
  bool offload_embeddings = false;

  std::int64_t count(Residency residency) const;
  std::int64_t count(Recompute mode) const;
  std::vector<Residency> residency() const;
  std::vector<Recompute> recompute() const;
  void set_residency(const std::vector<Residency>& all);
  void set_recompute(const std::vector<Recompute>& all);
  void set_recompute(Recompute mode);

  bool operator==(const ModelPlacement&) const = default;
};

/// A user's request. The planner chooses what is open.
struct PlacementRequest {
  std::optional<std::vector<Residency>> residency{};  ///< by block
  bool offload_embeddings = false;
  std::optional<std::vector<Recompute>> recompute{};  ///< by block

  std::int64_t count(Residency of) const;  ///< 0 if the residency is open
};

/// Parses "auto" or a list of items with commas between them, from the lowest block:
/// `PLACE[:RECOMPUTE][*COUNT]`. The last item takes all blocks that are left. PLACE is
///
///   resident           all on the device
///   offload-state      optimizer state in host memory; copied to the device for its update
///   speculative        the same; updated during the backward pass, and again if the step clips
///   offload-optimizer  optimizer state in host memory, where the CPU updates it
///   offload-all        the same, and weights and gradients in host memory too
///   auto               chosen; then of all blocks
///
/// in this order, and RECOMPUTE is none, gelu, gelu+ln, block or block+host; without it, it is
/// chosen, then for all blocks. A last item "offload-embeddings" sets that field. Throws Error
/// (usage).
PlacementRequest parse_placement(const std::string& text, std::int64_t layers);

/// Returns the shortest text that parse_placement() reads as this.
std::string to_string(const ModelPlacement& placement);
/// Returns what blocks recompute, for people: "12 block, 24 gelu+ln".
std::string recompute_text(const ModelPlacement& placement);

std::string_view name_of(Residency residency);

}  // namespace sluice
