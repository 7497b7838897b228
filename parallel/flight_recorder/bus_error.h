#pragma once

namespace sluice {

/// Gives SIGBUS back to this program before it handles the signal itself. Open MPI 5 links UCX,
/// whose handler of it prints a stack, and whose sigaction() keeps that handler whatever it is
/// given.
void take_back_bus_error();

}  // namespace sluice
