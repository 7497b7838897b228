#pragma once

#include <string>
#include <string_view>

#include "optim/parameter_space.h"
#include "parallel/communicator.h"

namespace sluice {

/// Compares the working weights of all ranks, tensor by tensor, by checksums; no update may be
/// under way. Throws Error with the ranks that differ from the others and the first tensor in which
/// they do. `when`: "at the start", "after step 100".
void require_equal_weights(const ParameterSpace& space, Communicator& control,
                           std::string_view when);

/// The same for the copies that some ranks have of one parameter.
void require_equal_copies(const ParameterSpace& space, const std::string& name,
                          Communicator& control, std::string_view when);

}  // namespace sluice
