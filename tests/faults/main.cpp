#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/faults/form.h"
#include "tests/support/session.h"

int main(int argc, char** argv) {
  Catch::Session session;
  using namespace Catch::clara;
  sluice::test::Form& form = sluice::test::form();
  session.cli(session.cli() | Opt(form.full)["--long"]("every call and many rounds, with a table") |
              Opt(form.seed, "number")["--seed"]("of what is drawn") |
              Opt(form.round, "number")["--round"]("this sequence of the random walk alone"));
  return sluice::test::run(session, argc, argv);
}
