#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "optim/parameter_space.h"
#include "parallel/communicator_group.h"
#include "tests/support/gradcheck.h"

// Ranks, as threads, that divide the matrices of a model.

namespace sluice::test {

using TensorRank = std::function<void(CommunicatorGroup&, const DevicePtr&)>;
/// Runs `body` as every rank, on a device of its own.
void on_tensor_ranks(int ranks, DeviceKind kind, const TensorRank& body);

/// The tensors of a model, put together from what its ranks have.
class Assembled {
 public:
  /// What a rank has of a slot; from any thread.
  void add(const ParameterSpace::Slot& slot, const Values& values);

  const std::map<std::string, Values>& values() const { return values_; }
  /// Slots that ranks should have alike and have not, bit for bit.
  const std::vector<std::string>& differences() const { return differences_; }

 private:
  std::mutex mutex_;
  std::map<std::string, Values> values_;
  std::vector<std::string> differences_;
};

}  // namespace sluice::test
