#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/mesh.h"
#include "parallel/data_parallel/zero_optimizer.h"

namespace sluice {

/// Redistributes the weights and the optimizer state of the whole model, in the model's order: from
/// the ranks that keep them to the ranks that request them. All ranks call the functions together.
class ModelState {
 public:
  struct Field {
    std::string name;
    DType dtype = DType::f32;
    std::int64_t count = 0;  ///< elements
  };
  /// A rank of each replica that holds a parameter, or a shard of it.
  struct Holder {
    int part = 0;  ///< rank within a replica
    Shard shard{};
    SpaceRange space{};  ///< where the parameter is in that rank's parameter space
  };
  struct Entry {
    std::string name;
    Shape shape;
    std::int64_t size = 0;
    std::vector<Field> fields{};    ///< the optimizer state of the parameter
    std::vector<Holder> holders{};  ///< ranks that together hold all of it
  };
  /// Elements of one parameter for a rank: of its weights or of a field of its state.
  struct Request {
    int rank = 0;
    std::size_t entry = 0;
    std::optional<std::size_t> field{};  ///< none: the weights, in the space's weight_dtype()
    std::int64_t first = 0, count = 0;
    std::span<std::byte> out{};  ///< on that rank; the others leave it empty
  };

  /// `whole`: the layout of the whole model. `all`: all ranks of `mesh`, on host memory. All
  /// arguments must outlive this object.
  ModelState(const ParameterSpace& space, Optimizer& optimizer, const ZeroOptimizer& zero,
             const SpaceLayout& whole, const Mesh& mesh, Communicator& all);

  const std::vector<Entry>& entries() const { return entries_; }
  DType weight_dtype() const { return space_.weight_dtype(); }
  /// Fills all requests in the list, which is the same on all ranks. A rank sends another one all
  /// that it requests in one message. Of replicas that keep equal state, its own one sends. No
  /// update may be under way.
  void redistribute(std::span<const Request> list);

 private:
  /// A range that the replicas divide (ZeRO-1).
  struct Kept {
    SpaceRange range;
    int replica;
  };
  /// A rank that has some of what is requested: elements [begin, end) of its shard.
  struct Source {
    int rank;
    const Holder& holder;
    std::int64_t begin, end;
  };

  int parts() const { return mesh_.pp * mesh_.tp; }
  int part() const { return all_.rank() % parts(); }
  std::vector<Entry> own_entries() const;
  std::vector<Kept> own_kept(const ZeroOptimizer& zero) const;
  std::size_t width(const Request& request) const;
  template <class Body>
  void for_each_source(const Request& request, Body&& body) const;
  void read(const Request& request, std::int64_t first, std::span<std::byte> out);

  const ParameterSpace& space_;
  Optimizer& optimizer_;
  const Mesh& mesh_;
  Communicator& all_;
  std::vector<Entry> entries_;
  std::vector<const ParameterSpace::Slot*> here_;  ///< this rank's slot of each entry; null: none
  std::vector<std::vector<Kept>> kept_;  ///< of each part, ascending; empty: a replica has it all
};

}  // namespace sluice
