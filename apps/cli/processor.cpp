#include "apps/cli/processor.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

// This file is compiled for every processor of the architecture (see CMakeLists.txt) and runs
// before all else. It calls only functions of libc: the linker keeps one copy of an inline
// function, which may come from a file compiled for other instruction sets.
//
// SLUICE_INSTRUCTION_SETS is SET("avx") SET("avx2") ...: what the rest of the program may use.

namespace sluice {
namespace {

__attribute__((constructor(101))) void check_processor() {
#ifdef SLUICE_INSTRUCTION_SETS
  __builtin_cpu_init();
#define SET(name) {name, __builtin_cpu_supports(name) != 0},
  const InstructionSet sets[] = {SLUICE_INSTRUCTION_SETS};
#undef SET
  char text[400];
  if (!refuse_processor(sets, sizeof sets / sizeof *sets, text, sizeof text)) return;
  [[maybe_unused]] const bool told = ::write(STDERR_FILENO, program_invocation_short_name,
                                             std::strlen(program_invocation_short_name)) >= 0 &&
                                     ::write(STDERR_FILENO, text, std::strlen(text)) >= 0;
  _exit(1);
#endif
}

}  // namespace

bool refuse_processor(const InstructionSet* sets, std::size_t count, char* text, std::size_t size) {
  constexpr std::size_t named = 8;
  std::size_t missing = 0;
  char names[160] = "";
  for (std::size_t i = 0; i < count; ++i) {
    if (sets[i].present) continue;
    if (missing++ >= named) continue;
    const std::size_t used = std::strlen(names);
    std::snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", sets[i].name);
  }
  if (missing == 0) return false;
  std::snprintf(
      text, size,
      ": error: this program was built for processors with %s%s, which this one lacks; build "
      "it on this machine, or for older ones with -DSLUICE_MARCH=x86-64-v2\n",
      names, missing > named ? " and more" : "");
  return true;
}

void require_processor() {}

}  // namespace sluice
