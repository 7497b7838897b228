#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <numeric>
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

/// Whether a combination of values, each given by its place among its kind, belongs to the form. To
/// the long form all do. The short form has one of every `n`: those whose places add up to a
/// multiple. That leaves every pair of values, if what else there is has n places to choose from.
inline bool in_form(int n, std::initializer_list<std::int64_t> places) {
  return long_form() || std::accumulate(places.begin(), places.end(), std::int64_t{0}) % n == 0;
}

}  // namespace sluice::test
