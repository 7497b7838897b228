#include "parallel/flight_recorder/last_words.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/form.h"
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

TEST_CASE("one speaks also while it removes the folder", "[last_words]") {
  const TempDir work;
  const int rounds = by_form(50, 20000);  // one in 2,500 once had two, so the long form shows it
  for (int round = 0; round < rounds; ++round) {
    const std::filesystem::path folder = work.path() / std::to_string(round);
    const std::filesystem::path gone = folder.string() + ".gone";
    std::filesystem::create_directory(folder);
    constexpr int ranks = 4;
    std::atomic<int> ready = 0, spoke = 0;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&] {
        std::error_code ignored;
        ++ready;
        while (ready < ranks)
          ;
        if (speak_first(folder, "a rank")) {
          ++spoke;
          std::filesystem::rename(folder, gone, ignored);
        }
        std::filesystem::remove_all(gone, ignored);
      });
    for (std::thread& thread : threads)
      thread.join();
    REQUIRE(spoke == 1);
    REQUIRE_FALSE(std::filesystem::exists(folder));
    REQUIRE_FALSE(std::filesystem::exists(gone));
  }
}

}  // namespace sluice::test::last_words_test
