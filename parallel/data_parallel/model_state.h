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

/// Communicators that bring the state of the first replica's ranks to rank 0.
struct GatherLinks {
  Mesh mesh{};
  Communicator* all = nullptr;  ///< on host memory; none: every rank has all of the model
  /// to_first[r] joins rank 0 and rank r of the first replica. Null for r = 0 and on all other
  /// ranks.
  std::vector<std::shared_ptr<Communicator>> to_first{};
};

/// Reads the weights and optimizer state of the whole model, in the model's order, from whichever
/// ranks keep them. All ranks call the functions together with the same arguments. Only rank 0
/// receives the result.
class ModelState {
 public:
  struct Field {
    std::string name;
    DType dtype = DType::f32;
    std::int64_t count = 0;  ///< elements
  };
  /// A rank that holds a parameter, or a shard of it.
  struct Holder {
    int part = 0;  ///< rank within a replica
    Shard shard{};
  };
  struct Entry {
    std::string name;
    Shape shape;
    std::int64_t size = 0;
    std::vector<Field> fields{};    ///< the optimizer state of the parameter
    std::vector<Holder> holders{};  ///< ranks that together hold all of it
  };

  /// `whole`: the layout of the whole model. All arguments must outlive this object.
  ModelState(const ParameterSpace& space, const Optimizer& optimizer, ZeroOptimizer& mine,
             const SpaceLayout& whole, const GatherLinks& gather_links);

  const std::vector<Entry>& entries() const { return entries_; }
  /// Reads elements of one parameter from `first` on, as many as `out` holds, in the space's
  /// weight_dtype().
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
