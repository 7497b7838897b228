#include "apps/plan/cost/interconnect.h"

#include <algorithm>
#include <string_view>

#include "apps/cli/sizes.h"

namespace sluice {
namespace {

/// Parses "12.5GB" or "12.5GB/s" into bytes per second.
double parse_bandwidth(const std::string& flag, std::string text) {
  constexpr std::string_view per_second = "/s";
  if (text.ends_with(per_second)) text.resize(text.size() - per_second.size());
  return static_cast<double>(parse_bytes(flag, text));
}

}  // namespace

Link Interconnect::among(std::int64_t ranks, std::int64_t apart) const {
  if (ranks <= ranks_per_node) return link;
  const std::int64_t sharing = rings ? std::min(apart, ranks_per_node) : ranks_per_node;
  const double share = network.bandwidth / static_cast<double>(sharing);
  // A ring sends one message from each node to another, and the others within nodes.
  const auto of_node = static_cast<double>(ranks_per_node / sharing);
  const double within = (of_node - 1) * std::min(link.latency, network.latency);
  return {std::min(link.bandwidth, share),
          (std::max(link.latency, network.latency) + within) / of_node};
}

Link Interconnect::among_neighbours(std::int64_t ranks, std::int64_t all) const {
  const bool even = ranks <= ranks_per_node && ranks_per_node % ranks == 0;
  // Groups that end within a node share its network with the next group.
  return among(even ? ranks : all, ranks % ranks_per_node == 0 ? 1 : 2);
}

Link Interconnect::between(std::int64_t from, std::int64_t to) const {
  // All ranks of a node send at once.
  return among(from / ranks_per_node == to / ranks_per_node ? 1 : ranks_per_node + 1,
               ranks_per_node);
}

Interconnect interconnect_of(const PlanConfig& planning, const ParallelConfig& parallel,
                             const DeviceProfile& profile) {
  Interconnect all{.link = {profile.link_bandwidth, profile.link_latency},
                   .network = {parse_bandwidth("--network-bandwidth", planning.network_bandwidth),
                               planning.network_latency * 1e-6},
                   .ranks_per_node = planning.ranks_per_node,
                   .rings = profile.gpu && parallel.communication != GpuExchange::staged};
  if (!planning.link_bandwidth.empty())
    all.link.bandwidth = parse_bandwidth("--link-bandwidth", planning.link_bandwidth);
  if (planning.link_latency) all.link.latency = *planning.link_latency * 1e-6;
  return all;
}

std::int64_t ranks_of_node(const PlanConfig& planning, const ParallelConfig& parallel) {
  return std::min(std::int64_t{parallel.mesh().size()}, planning.ranks_per_node);
}

Shards shards_of(const PlanConfig& planning, const ParallelConfig& parallel,
                 const DeviceProfile& profile) {
  return {parallel.tp,
          interconnect_of(planning, parallel, profile)
              .among_neighbours(parallel.tp, parallel.mesh().size()),
          parallel.sequence_parallel};
}

double all_gather_seconds(double bytes, std::int64_t ranks, const Link& link) {
  const auto n = static_cast<double>(ranks);
  return (n - 1) * link.latency + (n - 1) / n * bytes / link.bandwidth;
}

}  // namespace sluice
