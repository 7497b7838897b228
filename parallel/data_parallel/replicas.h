#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// Compares the working weights of all ranks, tensor by tensor, by checksums; no update may be
/// under way. Throws Error with the ranks that differ from the others and the first tensor in which
/// they do. `numbers`: the job's rank numbers of the communicator's ranks; `when`: "at the start",
/// "after step 100".
void require_equal_weights(const ParameterSpace& space, Communicator& control,
                           const std::vector<int>& numbers, std::string_view when);

/// The same for the parameters that are not divided between `shards`, the tensor-parallel ranks.
void require_equal_replicated(const ParameterSpace& space, Communicator& shards,
                              const std::vector<int>& numbers, std::string_view when);

/// The same for the copies that some ranks have of one parameter, or of the same shard of it.
void require_equal_copies(const ParameterSpace& space, const std::string& name, int shard,
                          Communicator& control, std::string_view when);

}  // namespace sluice
