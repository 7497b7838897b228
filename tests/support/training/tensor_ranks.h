#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator_group.h"
#include "tests/support/gradcheck.h"

// Tensor-parallel ranks, as threads.

namespace sluice::test {

using TensorRank = std::function<void(CommunicatorGroup&, const DevicePtr&)>;
/// Runs `body` as every rank, each on a device of its own.
void on_tensor_ranks(int ranks, DeviceKind kind, const TensorRank& body);

/// The tensors of a model, assembled from the shards of its ranks.
class Assembled {
 public:
  /// Adds a rank's values of a slot; may be called from any thread.
  void add(const ParameterSpace::Slot& slot, const Values& values);

  const std::map<std::string, Values>& values() const { return values_; }
  /// Returns the slots that should be equal on all ranks and are not, compared bit for bit.
  const std::vector<std::string>& differences() const { return differences_; }

 private:
  std::mutex mutex_;
  std::map<std::string, Values> values_;
  std::vector<std::string> differences_;
};

}  // namespace sluice::test
