#pragma once

#include <cstddef>

namespace sluice {

/// An instruction set that the compiler was allowed to use, and whether this processor has it.
struct InstructionSet {
  const char* name;
  bool present;
};

/// The sentence for a processor that lacks some of them, in `text`: false if it lacks none. Of many
/// the first are named.
bool refuse_processor(const InstructionSet* sets, std::size_t count, char* text, std::size_t size);

/// Does nothing: whoever calls it has the check before its other initialisers, which ends the
/// process with that sentence and exit code 1 instead of by SIGILL.
void require_processor();

}  // namespace sluice
