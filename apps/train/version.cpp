#include "apps/train/version.h"

// Alone, so that a new commit compiles one file again.

namespace sluice {

const char* commit() {
  return SLUICE_COMMIT;
}

const char* version() {
  return SLUICE_VERSION " " SLUICE_COMMIT;
}

}  // namespace sluice
