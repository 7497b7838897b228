#pragma once

#include "parallel/comm/communicator.h"

namespace sluice {

/// Throws Error (usage) on all ranks if one runs another build of the program, or another MPI
/// library, than rank 0; names it with its host. All ranks call it.
void require_same_program(Communicator& ranks);

}  // namespace sluice
