#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/mesh.h"
#include "parallel/model_state.h"
#include "parallel/pipeline/links.h"

namespace sluice {

/// The ranks of a run, as its parts see them.
struct Ranks {
  std::shared_ptr<Communicator> control;  ///< all, on host memory
  Mesh mesh{};
  /// Those that have the same part of the model: on the memory of the device that computes, and on
  /// the host's.
  std::shared_ptr<Communicator> data{}, peers{};
  /// Those that divide the matrices of that part: likewise.
  std::shared_ptr<Communicator> tensor{}, shards{};
  MakeGroup group{};      ///< of ranks of this pipeline, by their places in it
  Collector collector{};  ///< of the state of a model of which no rank has all

  int rank() const { return control->rank(); }
  int size() const { return control->size(); }
  /// Whose share of each batch this rank works on, where in its pipeline, and of its matrices.
  int replica() const { return mesh.replica(rank()); }
  int stage() const { return mesh.stage(rank()); }
  int shard() const { return mesh.shard(rank()); }
};

/// Some ranks of a run that are to have a communicator.
struct Group {
  std::vector<int> members;
  std::uint64_t id;  ///< another one for each communicator of the same ranks
  std::string name;
  std::size_t largest;  ///< bytes of one operation on the device's memory; 0: on the host's
};
using MakeGroupOf = std::function<std::shared_ptr<Communicator>(const Group&)>;

/// The most bytes that ranks exchange in one operation on the device's memory.
struct Exchanges {
  std::size_t data = 0;    ///< replicas
  std::size_t stages = 0;  ///< neighbours in a pipeline
  std::size_t tensor = 0;  ///< those that divide matrices
};

/// The ids of the groups that make_ranks asks for.
enum class GroupId : std::uint64_t { data = 1, peers, tensor, shards };

/// This rank among those of `mesh`; `gpu`: the device that computes has memory of its own. All
/// ranks call it together.
Ranks make_ranks(std::shared_ptr<Communicator> control, const Mesh& mesh, bool gpu,
                 const Exchanges& exchanges, const MakeGroupOf& make);

/// A run of one process.
inline Ranks single_rank() {
  const std::shared_ptr<Communicator> alone = Communicator::planned(1, 0);
  return make_ranks(alone, {}, false, {}, [&](const Group&) { return alone; });
}

/// One rank for a plan, in which nothing is sent.
Ranks planned_ranks(const Mesh& mesh, int rank);

}  // namespace sluice
