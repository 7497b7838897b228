#pragma once

#include <functional>
#include <string>

#include "parallel/comm/world.h"

namespace sluice {

/// Runs the body of a program whose ranks mpirun may start. Only rank 0 prints. A rank that fails
/// ends the whole job, after it has given rank 0 time to print its own error. Returns the exit code
/// as run_program does.
int run_ranks(const std::string& name, const std::function<void(const World&)>& body);

}  // namespace sluice
