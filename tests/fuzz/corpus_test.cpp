#include <sys/resource.h>

#include <chrono>
#include <set>

#include "tests/fuzz/samples.h"
#include "tests/support/catch.h"

// Every sample has the verdict that it should have, soon and in little memory.

namespace sluice::fuzz {
namespace {

using test::Contains;

/// The most memory that this process has had so far.
long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

void check_samples(const Parser& parser) {
  constexpr long max_kib = 200 * 1024;
  std::set<std::string> names;
  std::size_t accepted = 0;
  for (const Sample& sample : parser.samples()) {
    INFO(parser.name << ": " << sample.name);
    CHECK(names.insert(sample.name).second);
    const long before = peak_kib();
    const auto begin = std::chrono::steady_clock::now();
    std::string message;
    CHECK_NOTHROW(message = refusal(parser.reader, sample.bytes));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
    CHECK(peak_kib() - before < max_kib);
    if (sample.refusal.empty())
      CHECK(message == "");
    else
      CHECK_THAT(message, Contains(sample.refusal));
    accepted += sample.refusal.empty();
  }
  // A harness that refuses everything, or nothing, would test nothing.
  CHECK(accepted > 0);
  CHECK(names.size() > accepted);
}

TEST_CASE("malformed files are refused and unusual ones are read", "[fuzz]") {
  for (const Parser& parser : parsers())
    SECTION(parser.name) {
      check_samples(parser);
    }
}

TEST_CASE("harnesses know messages that cannot be shown", "[fuzz]") {
  CHECK_NOTHROW(require_showable("x.json: \u00e9 is no number"));
  for (const std::string& bad :
       {std::string(), std::string("two\nlines"), std::string("a\x7F"), std::string("\xFF"),
        std::string("\xC3"), std::string("a\0b", 3), std::string(1001, 'a'), std::string("a\u009b"),
        std::string("a\u202e"), std::string("a\u200b")})
    CHECK_THROWS_AS(require_showable(bad), std::logic_error);
  CHECK_THROWS_AS(refusal([](Bytes) { require(false, "wrong"); }, ""), std::logic_error);
}

}  // namespace
}  // namespace sluice::fuzz
