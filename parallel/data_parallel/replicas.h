#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// Compares the working weights of all ranks by a checksum per tensor. No update may be under way.
/// Throws Error naming the ranks that differ and the first tensor in which they do. For its
/// message: `numbers[r]` is the job's number of the communicator's rank r; `when` is "at the start"
/// or "after step 100".
void require_equal_weights(const ParameterSpace& space, Communicator& control,
                           const std::vector<int>& numbers, std::string_view when);

/// The same for the parameters that are not divided between `shards`, the tensor-parallel ranks.
void require_equal_replicated(const ParameterSpace& space, Communicator& shards,
                              const std::vector<int>& numbers, std::string_view when);

/// The same for the copies that some ranks have of one parameter, or of the same shard of it.
void require_equal_copies(const ParameterSpace& space, const std::string& name, int shard,
                          Communicator& control, std::string_view when);

}  // namespace sluice
