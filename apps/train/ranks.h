#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/mesh.h"
#include "parallel/pipeline/executor.h"

namespace sluice {

/// The communicators of a rank, and its position in the mesh.
struct Ranks {
  std::shared_ptr<Communicator> control;  ///< all ranks, on host memory
  Mesh mesh{};
  /// Ranks with the same part of the model (data parallelism); `dp_device` exchanges memory of the
  /// compute device, `dp_host` host memory.
  std::shared_ptr<Communicator> dp_device{}, dp_host{};
  /// Ranks that divide the matrices of that part (tensor parallelism), likewise.
  std::shared_ptr<Communicator> tp_device{}, tp_host{};
  MakeGroup group{};  ///< makes groups of this pipeline's ranks, given by pipeline rank

  int rank() const { return control->rank(); }
  int size() const { return control->size(); }
  /// Index of this rank's replica, its rank in the pipeline, and its shard of the matrices.
  int replica() const { return mesh.replica(rank()); }
  int stage() const { return mesh.stage(rank()); }
  int shard() const { return mesh.shard(rank()); }
};

/// A request for a communicator of some ranks.
struct Group {
  std::vector<int> members;
  std::uint64_t id;  ///< differs between communicators of the same ranks
  std::string name;
  std::size_t largest;  ///< bytes of one operation on device memory; 0: it is on host memory
};
using MakeGroupOf = std::function<std::shared_ptr<Communicator>(const Group&)>;

/// The most bytes that ranks exchange in one operation on device memory.
struct Exchanges {
  std::size_t data = 0;    ///< between replicas
  std::size_t stages = 0;  ///< between neighbours in a pipeline
  std::size_t tensor = 0;  ///< between ranks that divide matrices
};

/// The ids of the groups that make_ranks asks for, and of those that connect GPUs.
enum class GroupId : std::uint64_t { data = 1, peers, tensor, shards, connect };

/// Makes this rank's communicators for `mesh`. `gpu`: the compute device is not the host. All ranks
/// call it together.
Ranks make_ranks(std::shared_ptr<Communicator> control, const Mesh& mesh, bool gpu,
                 const Exchanges& exchanges, const MakeGroupOf& make);

/// Returns the ranks of a run of one process.
inline Ranks single_rank() {
  const std::shared_ptr<Communicator> alone = Communicator::planned(1, 0);
  return make_ranks(alone, {}, false, {}, [&](const Group&) { return alone; });
}

/// Returns one rank's communicators for a plan, in which nothing is sent.
Ranks planned_ranks(const Mesh& mesh, int rank);

}  // namespace sluice
