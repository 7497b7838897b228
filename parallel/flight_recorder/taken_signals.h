#pragma once

namespace sluice {

/// Gives a signal back to this program before it handles the signal itself. Open MPI 5 links UCX,
/// which handles SIGBUS (its handler prints a stack) and SIGHUP (which shall stop the process for a
/// debugger), and whose sigaction() keeps these handlers whatever it is given.
void take_back_signal(int signal);

}  // namespace sluice
