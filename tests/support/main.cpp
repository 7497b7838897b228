// Catch2's own part takes seconds to compile: it stands alone here.
#define CATCH_CONFIG_RUNNER
#include "tests/support/catch.h"

#include "tests/support/session.h"

int main(int argc, char** argv) {
  Catch::Session session;
  return sluice::test::run(session, argc, argv);
}
