#define CATCH_CONFIG_RUNNER
#include "tests/support/catch.h"

#include "tests/faults/form.h"
#include "tests/support/session.h"

int main(int argc, char** argv) {
  Catch::Session session;
  using namespace Catch::Clara;
  sluice::test::Draws& draws = sluice::test::chosen_draws();
  session.cli(session.cli() |
              Opt(sluice::test::long_form())["--long"]("every call and many rounds, with a table") |
              Opt(draws.seed, "number")["--seed"]("of what is drawn") |
              Opt(draws.round, "number")["--round"]("this sequence of the random walk alone"));
  return sluice::test::run(session, argc, argv);
}
