#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/mesh.h"
#include "parallel/data_parallel/zero_optimizer.h"

namespace sluice {

/// The communicators by which the ranks of a replica bring their state to the first of all ranks.
struct GatherLinks {
  Mesh mesh{};
  Communicator* all = nullptr;  ///< on host memory; none: every rank has all of the model
  /// One for each rank of the first replica: of rank 0 and that rank, present on these two alone.
  std::vector<std::shared_ptr<Communicator>> to_first{};
};

/// The weights and the optimizer state of a model as one, in the model's order, wherever the ranks
/// keep them. All ranks call the functions together, for the same elements; rank 0 receives them.
class ModelState {
 public:
  struct Field {
    std::string name;
    DType dtype = DType::f32;
    std::int64_t count = 0;  ///< elements
  };
  /// A rank that has a parameter, or a shard of it.
  struct Holder {
    int part = 0;  ///< rank within a replica
    Shard shard{};
  };
  struct Entry {
    std::string name;
    Shape shape;
    std::int64_t size = 0;
    std::vector<Field> fields{};    ///< the optimizer state of the parameter
    std::vector<Holder> holders{};  ///< ranks that together have all of it
  };

  /// `whole`: the layout of the whole model. All arguments must outlive this object.
  ModelState(const ParameterSpace& space, const Optimizer& optimizer, ZeroOptimizer& mine,
             const SpaceLayout& whole, const GatherLinks& gather_links);

  const std::vector<Entry>& entries() const { return entries_; }
  /// Reads elements [first, ...) of one parameter, in the weights' dtype.
  void read_weights(const Entry& entry, std::int64_t first, std::span<std::byte> out);
  void read_state(const Entry& entry, std::size_t field, std::int64_t first,
                  std::span<std::byte> out);

 private:
  std::vector<Entry> own_entries() const;
  bool alone() const { return gather_links_.all == nullptr; }
  int part() const;
  template <class Read>
  void collect(const Entry& entry, bool divided, std::int64_t first, std::size_t width,
               std::span<std::byte> out, Read&& read);

  const ParameterSpace& space_;
  const Optimizer& optimizer_;
  ZeroOptimizer& mine_;
  const GatherLinks& gather_links_;
  std::vector<Entry> entries_;
};

}  // namespace sluice
