#pragma once

#include <vector>

namespace sluice {

/// How ranks divide the work: `dp` replicas of the model, each a pipeline of `pp` ranks. Ranks are
/// numbered replica by replica.
struct Mesh {
  int dp = 1;
  int pp = 1;

  int size() const { return dp * pp; }
  int replica(int rank) const { return rank / pp; }
  /// The place in the pipeline.
  int stage(int rank) const { return rank % pp; }
  int rank(int replica, int stage) const { return replica * pp + stage; }

  /// The ranks of one pipeline, in its order.
  std::vector<int> pipeline(int replica) const {
    std::vector<int> ranks;
    for (int stage = 0; stage < pp; ++stage)
      ranks.push_back(rank(replica, stage));
    return ranks;
  }
  /// The ranks that have the same stages, in the order of their replicas.
  std::vector<int> peers(int stage) const {
    std::vector<int> ranks;
    for (int replica = 0; replica < dp; ++replica)
      ranks.push_back(rank(replica, stage));
    return ranks;
  }
};

}  // namespace sluice
