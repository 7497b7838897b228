#include "apps/plan/cost/interconnect.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "apps/cli/parse/number_checks.h"
#include "apps/cli/sizes.h"
#include "engine/io/json_document.h"

namespace sluice {
namespace {

std::string without(std::string_view unit, std::string text) {
  if (text.ends_with(unit)) text.resize(text.size() - unit.size());
  return text;
}

}  // namespace

Link parse_link(const std::string& flag, const std::string& text, Link usual) {
  if (text.empty()) return usual;
  const auto comma = std::min(text.find(','), text.size());
  usual.bandwidth = static_cast<double>(parse_bytes(flag, without("/s", text.substr(0, comma))));
  if (comma == text.size()) return usual;
  constexpr double most = 1e6;  // microseconds
  const std::string latency = without("us", text.substr(comma + 1));
  if (const std::string why = wrong_number(latency, 0, most); !why.empty())
    fail(fmt::format("{} {}: after the comma are the microseconds of a message: {}", flag,
                     excerpt(text), why),
         ErrorKind::usage);
  usual.latency = std::stod(latency) * 1e-6;
  return usual;
}

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
  constexpr Link usual_network{.bandwidth = 12.5e9, .latency = 10e-6};
  return {
      .link = parse_link("--link", planning.link, {profile.link_bandwidth, profile.link_latency}),
      .network = parse_link("--network", planning.network, usual_network),
      .ranks_per_node = planning.ranks_per_node,
      .rings = profile.gpu && parallel.communication != GpuExchange::staged};
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
