#include <cstdio>

#include "apps/cli/processor.h"

// A program for a processor that does not exist: nothing of it may run.

namespace {
const int early = std::puts("an initialiser has run");
}  // namespace

int main() {
  sluice::require_processor();
  return early < 0 ? 2 : 0;
}
