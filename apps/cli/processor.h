#pragma once

#include <cstddef>

namespace sluice {

/// An instruction set that the compiler was allowed to use, and whether this processor has it.
struct InstructionSet {
  const char* name;
  bool present;
};

/// Writes to `text` the error for a processor that lacks instruction sets, naming the first few.
/// Returns false if it lacks none.
bool refuse_processor(const InstructionSet* sets, std::size_t count, char* text, std::size_t size);

/// Does nothing itself. Calling it links in the check, which runs before all other initialisers and
/// ends the process with that error and exit code 1 instead of by SIGILL.
void require_processor();

}  // namespace sluice
