#include "tests/support/skip.h"

#include <cstdio>
#include <type_traits>

#include "tests/support/session.h"

#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "tests/support/catch.h"

namespace sluice::test {
namespace {

struct Outcomes {
  int cases = 0, skipped = 0, empty = 0;
  bool skips = false;  ///< this case
};
Outcomes outcomes;

template <class Info>
const char* name_of(const Info& info) {
  if constexpr (std::is_pointer_v<Info>) {  // Catch2 3
    return info->name.c_str();
  } else {
    return info.name.c_str();
  }
}

struct Listener : Catch::EventListenerBase {
  using Catch::EventListenerBase::EventListenerBase;

  void testCaseStarting(const Catch::TestCaseInfo& /*info*/) override { outcomes.skips = false; }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ++outcomes.cases;
    if (outcomes.skips) {
      ++outcomes.skipped;
    } else if (stats.totals.assertions.total() == 0) {
      ++outcomes.empty;
      std::fprintf(stderr, "error: the case \"%s\" made no assertion\n", name_of(stats.testInfo));
    }
  }
};
CATCH_REGISTER_LISTENER(Listener)

}  // namespace

void skip(const std::string& why) {
  outcomes.skips = true;
  WARN("skipped: " << why);
}

int exit_code(int result) {
  if (outcomes.cases == 0) std::fprintf(stderr, "error: no case ran\n");
  if (result != 0 || outcomes.cases == 0 || outcomes.empty > 0) return 1;
  return outcomes.skipped == outcomes.cases ? 4 : 0;
}

}  // namespace sluice::test
