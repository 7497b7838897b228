#pragma once

#include <memory>
#include <optional>

#include "parallel/communicator.h"
#include "parallel/mesh.h"
#include "parallel/model_state.h"
#include "parallel/pipeline/links.h"

namespace sluice {

/// The ranks of a run, as its parts see them.
struct Ranks {
  /// Where replicas of the model are pipelines.
  struct Pipelined {
    Mesh mesh;
    std::shared_ptr<Communicator> peers;  ///< the ranks with the same stages, on host memory
    MakeGroup group;                      ///< of ranks of this pipeline, by their places in it
    Collector collector{};                ///< `all` is the control below
  };

  std::shared_ptr<Communicator> control;  ///< all, on host memory
  /// Those that have the same part of the model, on the memory of the device that computes.
  std::shared_ptr<Communicator> data;
  std::optional<Pipelined> pipelined{};

  int rank() const { return control->rank(); }
  int size() const { return control->size(); }
  Mesh mesh() const { return pipelined ? pipelined->mesh : Mesh{.dp = size()}; }
  /// Whose share of each batch this rank works on, and where in its pipeline.
  int replica() const { return mesh().replica(rank()); }
  int stage() const { return mesh().stage(rank()); }
  Communicator& peers() const { return pipelined ? *pipelined->peers : *control; }
};

/// A run of one process.
inline Ranks single_rank() {
  const std::shared_ptr<Communicator> alone = Communicator::planned(1, 0);
  return {alone, alone};
}

/// One rank for a plan, in which nothing is sent.
inline Ranks planned_ranks(const Mesh& mesh, int rank, bool pipelined) {
  Ranks ranks{Communicator::planned(mesh.size(), rank),
              Communicator::planned(mesh.dp, mesh.replica(rank))};
  if (pipelined)
    ranks.pipelined = {mesh, Communicator::planned(mesh.dp, mesh.replica(rank)),
                       [](std::span<const int> members, std::uint64_t, const std::string&) {
                         return Communicator::planned(static_cast<int>(members.size()), 0);
                       }};
  return ranks;
}

}  // namespace sluice
