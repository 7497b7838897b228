#pragma once

#include <cstdlib>
#include <string_view>

// The two forms of a test. ctest runs the short form, in which each property is seen once, so that
// all tests together take minutes. The long form, which tries everything with everything, runs
// where SLUICE_TEST_LONG is 1 in the environment.

namespace sluice::test {

/// Whether this process runs the long form. A main may set it before the first case.
inline bool& long_form() {
  static bool chosen = [] {
    const char* const value = std::getenv("SLUICE_TEST_LONG");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return chosen;
}

/// Returns the first value in the short form and the second in the long form.
template <class T>
T by_form(T in_short, T in_long) {
  return long_form() ? in_long : in_short;
}

}  // namespace sluice::test
