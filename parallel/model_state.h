#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/mesh.h"
#include "parallel/sharded_optimizer.h"

namespace sluice {

/// How what the ranks of a replica have comes to the first of all ranks.
struct Collector {
  Mesh mesh{};
  Communicator* all = nullptr;  ///< on host memory; none: every rank has all of the model
  /// By rank of the first replica: of the first rank and that one, there for these two alone.
  std::vector<std::shared_ptr<Communicator>> to_first{};
};

/// The weights and the optimizer state of a model as one, in its own order, whichever ranks have
/// them. All ranks call the functions together, for the same elements; the first receives them.
class ModelState {
 public:
  struct Field {
    std::string name;
    DType dtype = DType::f32;
    std::int64_t count = 0;  ///< elements
  };
  /// Who has a parameter, or a shard of it.
  struct Holder {
    int part = 0;  ///< rank of a replica
    Shard shard{};
  };
  struct Entry {
    std::string name;
    Shape shape;
    std::int64_t size = 0;
    std::vector<Field> fields{};    ///< what the optimizer carries for it
    std::vector<Holder> holders{};  ///< together they have all of it
  };

  /// `whole`: the layout of the model. Everything given outlives it.
  ModelState(const ParameterSpace& space, const Optimizer& optimizer, ShardedOptimizer& mine,
             const SpaceLayout& whole, const Collector& collector);

  const std::vector<Entry>& entries() const { return entries_; }
  /// Elements [first, ...) of one parameter, in the weights' dtype.
  void read_weights(const Entry& entry, std::int64_t first, std::span<std::byte> out);
  void read_state(const Entry& entry, std::size_t field, std::int64_t first,
                  std::span<std::byte> out);

 private:
  std::vector<Entry> own_entries() const;
  bool alone() const { return collector_.all == nullptr; }
  int part() const;
  template <class Read>
  void collect(const Entry& entry, bool divided, std::int64_t first, std::size_t width,
               std::span<std::byte> out, Read&& read);

  const ParameterSpace& space_;
  const Optimizer& optimizer_;
  ShardedOptimizer& mine_;
  const Collector& collector_;
  std::vector<Entry> entries_;
};

}  // namespace sluice
