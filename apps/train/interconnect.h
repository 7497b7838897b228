#pragma once

#include <cstdint>

#include "apps/train/device_profile.h"
#include "apps/train/options.h"

namespace sluice {

/// How fast one rank sends, while all of them send and receive at once.
struct Link {
  double bandwidth = 0;  ///< bytes per second, one direction
  double latency = 0;    ///< seconds a message

  double seconds(double bytes) const { return latency + bytes / bandwidth; }
};

/// What joins the ranks.
struct Interconnect {
  Link link;     ///< between the ranks of a node
  Link network;  ///< between nodes; the bandwidth is a node's, which its ranks share
  std::int64_t ranks_per_node = 8;

  /// What every message goes by: beyond one node the slower of both, since an algorithm that
  /// reduces within nodes first is not assumed.
  Link among(std::int64_t ranks) const;
  /// The same for groups of `ranks` that follow one another among `all`: within nodes if they
  /// divide a node evenly.
  Link among_neighbours(std::int64_t ranks, std::int64_t all) const;
  /// Of one message.
  Link between(std::int64_t from, std::int64_t to) const;
};

/// Links from the options, else the profile's.
Interconnect interconnect_of(const TrainOptions& options, const DeviceProfile& profile);

/// Ranks that divide the matrices between them, and what joins them.
struct Shards {
  std::int64_t ranks = 1;
  Link link{};
  bool divide_tokens = false;  ///< --sequence-parallel
};
Shards shards_of(const TrainOptions& options, const DeviceProfile& profile);

/// An all-gather in which all ranks together have so many bytes; an all-reduce takes two of them:
/// see predict_communication in scaling.h.
double all_gather_seconds(double bytes, std::int64_t ranks, const Link& link);

}  // namespace sluice
