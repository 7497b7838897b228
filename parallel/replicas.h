#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optim/parameter_space.h"
#include "parallel/communicator.h"

namespace sluice {

/// Compares the working weights of all ranks, tensor by tensor, by checksums; no update may be
/// under way. Throws Error with the ranks that differ from the others and the first tensor in which
/// they do. `numbers`: of the communicator's ranks in the job; `when`: "at the start", "after step
/// 100".
void require_equal_weights(const ParameterSpace& space, Communicator& control,
                           const std::vector<int>& numbers, std::string_view when);

/// The same for what the `shards` of a model's matrices, ranks on host memory, all have of it.
void require_equal_replicated(const ParameterSpace& space, Communicator& shards,
                              const std::vector<int>& numbers, std::string_view when);

/// The same for the copies that some ranks have of one parameter, or of the same shard of it.
void require_equal_copies(const ParameterSpace& space, const std::string& name, int shard,
                          Communicator& control, std::string_view when);

}  // namespace sluice
