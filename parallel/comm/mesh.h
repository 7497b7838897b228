#pragma once

#include <vector>

namespace sluice {

/// How ranks divide the work: `dp` replicas of the model, each a pipeline of `pp` stages (with
/// interleaving, of `pp` places that have several stages), each computed by `tp` tensor-parallel
/// ranks. Numbers of ranks go through the shards first, then the stages, then the replicas.
struct Mesh {
  int dp = 1;
  int pp = 1;
  int tp = 1;

  int size() const { return dp * pp * tp; }
  int replica(int rank) const { return rank / (pp * tp); }
  /// The rank's place in its pipeline.
  int stage(int rank) const { return rank / tp % pp; }
  /// The rank's position among the tensor-parallel ranks that divide the matrices.
  int shard(int rank) const { return rank % tp; }
  int rank(int replica, int stage, int shard) const { return (replica * pp + stage) * tp + shard; }

  /// The data-parallel group of `rank`: the ranks with the same part of the model, ordered by
  /// replica.
  std::vector<int> peers(int rank) const {
    std::vector<int> ranks;
    for (int replica = 0; replica < dp; ++replica)
      ranks.push_back(this->rank(replica, stage(rank), shard(rank)));
    return ranks;
  }
  /// The tensor-parallel group of `rank`: the ranks that divide the matrices of its stages.
  std::vector<int> shards(int rank) const {
    std::vector<int> ranks;
    for (int shard = 0; shard < tp; ++shard)
      ranks.push_back(this->rank(replica(rank), stage(rank), shard));
    return ranks;
  }
};

/// One rank of a mesh.
struct MeshRank {
  Mesh mesh{};
  int rank = 0;
};

}  // namespace sluice
