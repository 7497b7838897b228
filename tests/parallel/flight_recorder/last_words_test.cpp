#include "parallel/flight_recorder/last_words.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/process/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::last_words_test {

TEST_CASE("of several ranks that fail one speaks, and its sentence is kept", "[last_words]") {
  const TempDir folder;
  CHECK(last_words(folder.path()).empty());
  Gate gate;
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < 6; ++rank)
    children.push_back(std::make_unique<Child>([&, rank] {
      gate.wait();
      return speak_first(folder.path(), "rank " + std::to_string(rank)) ? 1 : 0;
    }));
  gate.open();
  std::string speakers;
  for (std::size_t rank = 0; rank < children.size(); ++rank)
    if (children[rank]->reap() == 1) speakers += "rank " + std::to_string(rank);
  CHECK(speakers.size() == 6);
  CHECK(last_words(folder.path()) == speakers);
  CHECK_FALSE(speak_first(folder.path(), "another"));
  CHECK(last_words(folder.path()) == speakers);
  // The one that spoke has removed it.
  CHECK_FALSE(speak_first(folder.path() / "none", "another"));
  CHECK_FALSE(speak_first(folder.path() / "none", "another"));
  CHECK(last_words(folder.path() / "none").empty());
}

}  // namespace sluice::test::last_words_test
