#include "apps/cli/version.h"

// A separate file, so that a new commit recompiles only this one.

namespace sluice {

const char* commit() {
  return SLUICE_COMMIT;
}

const char* version() {
  return SLUICE_VERSION " " SLUICE_COMMIT;
}

}  // namespace sluice
