#pragma once

#include <cstdint>

#include "apps/config/train_config.h"
#include "apps/plan/cost/device_profile.h"

namespace sluice {

/// The speed of a link at which one rank sends while all ranks send and receive at once.
struct Link {
  double bandwidth = 0;  ///< bytes per second in one direction
  double latency = 0;    ///< seconds per message

  double seconds(double bytes) const { return latency + bytes / bandwidth; }
};

/// Parses a bandwidth and, after a comma, a latency: "25GB", "25GiB/s,2.5us". What is not given is
/// that of `usual`. Throws Error (usage) naming the flag.
Link parse_link(const std::string& flag, const std::string& text, Link usual);

/// The links between ranks.
struct Interconnect {
  Link link;     ///< between the ranks of a node
  Link network;  ///< between nodes; the bandwidth is per node and shared by its ranks
  std::int64_t ranks_per_node = 8;
  /// Collectives pass data around a ring that leaves each node once, as NCCL's do. Else each rank
  /// sends to all others.
  bool rings = false;

  /// Returns the link that limits a collective of a group whose ranks lie `apart` ranks from each
  /// other, among `ranks` in all. Across nodes it is the slower of `link` and the share of
  /// `network`, which as many rings of a node divide as groups have ranks there (else: all ranks).
  Link among(std::int64_t ranks, std::int64_t apart = 1) const;
  /// Returns the same for groups of `ranks` consecutive ranks of `all`: the link within a node if
  /// whole groups fill a node.
  Link among_neighbours(std::int64_t ranks, std::int64_t all) const;
  /// Returns the link between two ranks.
  Link between(std::int64_t from, std::int64_t to) const;
};

/// Takes the links from the options, else from the profile.
Interconnect interconnect_of(const PlanConfig& planning, const ParallelConfig& parallel,
                             const DeviceProfile& profile);

/// Returns how many ranks of the job share a machine.
std::int64_t ranks_of_node(const PlanConfig& planning, const ParallelConfig& parallel);

/// The tensor-parallel ranks and the link between them.
struct Shards {
  std::int64_t ranks = 1;
  Link link{};
  bool divide_tokens = false;  ///< --sequence-parallel
};
Shards shards_of(const PlanConfig& planning, const ParallelConfig& parallel,
                 const DeviceProfile& profile);

/// Returns the seconds of an all-gather of `bytes` over all ranks together. An all-reduce takes
/// twice as long: see predict_communication in scaling.h.
double all_gather_seconds(double bytes, std::int64_t ranks, const Link& link);

}  // namespace sluice
