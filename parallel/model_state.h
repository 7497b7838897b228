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

/// How what the ranks of a pipeline have comes to the first of all ranks.
struct Collector {
  Mesh mesh;
  Communicator* all = nullptr;  ///< on host memory
  /// By stage: of the first rank and, as the second, that of the first replica which has the stage;
  /// there for these two alone.
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
  struct Entry {
    std::string name;
    Shape shape;
    std::int64_t size = 0;
    std::vector<Field> fields{};  ///< what the optimizer carries for it
    int stage = 0;                ///< of the pipeline, that has it
  };

  /// `collector` is there where the space is a part of a model, whose layout is `whole`. Everything
  /// given outlives it.
  ModelState(const ParameterSpace& space, const Optimizer& optimizer, ShardedOptimizer& mine,
             const SpaceLayout& whole, const Collector* collector);

  const std::vector<Entry>& entries() const { return entries_; }
  /// Elements [first, ...) of one parameter, in the weights' dtype.
  void read_weights(const Entry& entry, std::int64_t first, std::span<std::byte> out);
  void read_state(const Entry& entry, std::size_t field, std::int64_t first,
                  std::span<std::byte> out);

 private:
  std::vector<Entry> own_entries() const;
  template <class Read>
  void collect(const Entry& entry, std::span<std::byte> out, Read&& read);

  const ParameterSpace& space_;
  const Optimizer& optimizer_;
  ShardedOptimizer& mine_;
  const Collector* collector_;
  std::vector<Entry> entries_;
};

}  // namespace sluice
