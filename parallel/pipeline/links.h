#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/pipeline/schedule.h"

namespace sluice {

/// Makes a communicator of some ranks, given by their numbers in the pipeline, on the memory of the
/// device that computes. All of its members call it, with the same `id`.
using MakeGroup = std::function<std::shared_ptr<Communicator>(
    std::span<const int> members, std::uint64_t id, const std::string& name)>;

/// The links between neighbouring stages. Each border between stages of different ranks has one
/// communicator of two for outputs and one for gradients, since each direction has its own order.
class StageLinks {
 public:
  /// Makes the communicators that `rank` takes part in.
  StageLinks(const std::vector<int>& rank_of_stage, int rank, const MakeGroup& make);

  /// Links from `stage` to the next, and back. Null if one rank has both, or this rank has neither.
  Communicator* outputs(int stage) const { return at(outputs_, stage); }
  Communicator* gradients(int stage) const { return at(gradients_, stage); }

 private:
  using Links = std::vector<std::shared_ptr<Communicator>>;
  static Communicator* at(const Links& links, int stage) {
    return links[static_cast<std::size_t>(stage)].get();
  }
  Links outputs_, gradients_;
};

}  // namespace sluice
