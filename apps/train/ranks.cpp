#include "apps/train/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace sluice {
namespace {

/// The first id of pipeline links; GroupId has the ids below.
constexpr std::uint64_t first_link = 16;

std::uint64_t id_of(GroupId id) {
  return static_cast<std::uint64_t>(id);
}

}  // namespace

Ranks make_ranks(std::shared_ptr<Communicator> control, const Mesh& mesh, bool gpu,
                 const Exchanges& exchanges, const MakeGroupOf& make) {
  const int rank = control->rank();
  const int replica = mesh.replica(rank), stage = mesh.stage(rank), shard = mesh.shard(rank);
  Ranks ranks{.control = control, .mesh = mesh};
  // Makes a group on host memory and, with GPUs, another one on device memory.
  const auto pair = [&](const std::vector<int>& members, GroupId host, GroupId device,
                        const std::string& name, std::size_t largest) {
    const bool all = static_cast<int>(members.size()) == mesh.size();
    const auto on_host = all ? control : make({members, id_of(host), name, 0});
    if (!gpu || members.size() == 1) return std::pair(on_host, on_host);
    return std::pair(on_host, make({members, id_of(device), name + " on the device", largest}));
  };
  std::tie(ranks.dp_host, ranks.dp_device) =
      pair(mesh.peers(rank), GroupId::peers, GroupId::data,
           fmt::format("replicas of {}", stage * mesh.tp + shard), exchanges.data);
  std::tie(ranks.tp_host, ranks.tp_device) =
      pair(mesh.shards(rank), GroupId::shards, GroupId::tensor,
           fmt::format("shards of {}", replica * mesh.pp + stage), exchanges.tensor);
  std::string suffix = mesh.dp > 1 ? fmt::format(" r{}", replica) : "";
  if (mesh.tp > 1) suffix += fmt::format(" t{}", shard);
  ranks.group = [=](std::span<const int> places, std::uint64_t id, const std::string& name) {
    std::vector<int> members;
    for (const int place : places)
      members.push_back(mesh.rank(replica, place, shard));
    return make({members, first_link + id, name + suffix, exchanges.stages});
  };
  return ranks;
}

Ranks planned_ranks(const Mesh& mesh, int rank) {
  return make_ranks(Communicator::planned(mesh.size(), rank), mesh, false, {},
                    [rank](const Group& group) {
                      const auto place = std::ranges::find(group.members, rank);
                      return Communicator::planned(static_cast<int>(group.members.size()),
                                                   static_cast<int>(place - group.members.begin()));
                    });
}

}  // namespace sluice
