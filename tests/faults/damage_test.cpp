#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "apps/checkpoint/checkpoint.h"
#include "tests/faults/runs.h"
#include "tests/support/catch.h"

// A checkpoint is damaged. Whoever asks for exactly that one is refused, with the file's name; a
// run that takes the newest that is whole warns, goes on from the older one, and ends with the
// bytes of a run without damage.

namespace sluice::test::damage_test {
namespace {

/// Two checkpoints, of steps 2 and 4, of a run that is to go on to step 5.
struct Saved : FaultRuns {
  explicit Saved(const Kind& kind) : FaultRuns(kind) {
    const Ended ended = run("base", {.flags = {{"--steps", "4"}, {"--keep", "2"}}});
    REQUIRE(ended.exit_code == 0);
    undisturbed(keep_two);
  }

  /// The folder of the newer one in a copy of all.
  fs::path copy(const std::string& output) const {
    fs::remove_all(path() / output);
    fs::copy(path() / "base", path() / output, fs::copy_options::recursive);
    return path() / output / "checkpoints" / "step-00000004";
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path() / "base/checkpoints/step-00000004"))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    REQUIRE(names.size() >= 3);
    return names;
  }

  /// Applies `damage` to this file and returns what then goes wrong: in a resume from exactly this
  /// checkpoint, and in a resume from the newest whole one.
  std::string after(const std::string& file, bool also_fall_back,
                    const std::function<void(const fs::path&)>& damage) {
    Problems problems;
    const fs::path exact = copy("exact");
    damage(exact / file);
    const Ended refused = run("exact", {.flags = keep_two + Flags{{"--resume", exact.string()}}});
    problems.require(refused.exit_code == 1, fmt::format("--resume PATH: exit code {}: {}",
                                                         refused.exit_code, refused.err));
    problems.require(refused.words.find((exact / file).string()) != std::string::npos &&
                         count_lines(refused.words) == 1,
                     "not named in: " + refused.err);
    forget("exact");
    if (!also_fall_back) return problems.text();
    damage(copy("auto") / file);
    const Ended ended = run("auto", {.flags = keep_two});
    problems.require(ended.exit_code == 0, "--resume auto: " + ended.err);
    problems.require(ended.out.find("warning") != std::string::npos &&
                         ended.out.find("step-00000004/" + file) != std::string::npos &&
                         ended.out.find("(step 2)") != std::string::npos,
                     "no warning, or not from step 2: " + ended.out);
    problems.require(!logged(path() / "auto", "warning").empty(), "the log has no warning");
    problems.add(difference(outcome(path() / "auto"), undisturbed(keep_two)));
    forget("auto");
    return problems.text();
  }

  const Flags keep_two{{"--keep", "2"}};
};

void change(const fs::path& file, const std::function<void(std::string&)>& what) {
  std::string bytes = read_file(file);
  what(bytes);
  write_file(file, bytes);
}

}  // namespace

TEST_CASE("every flipped bit of a checkpoint is found") {
  Saved saved(kinds().front());
  Tally tally("d: flipped bits");
  const auto files = saved.files();
  const int rounds = by_form(18, 300);
  for (int round = 0; round < rounds; ++round) {
    auto random = draws(static_cast<std::uint64_t>(round));
    // The files take turns, since one of them has most of the bits.
    const std::string& file = files[static_cast<std::size_t>(round) % files.size()];
    const auto size = fs::file_size(saved.path() / "base/checkpoints/step-00000004" / file);
    // Headers and beginnings are worth as much as the long rest.
    const auto end = round / static_cast<int>(files.size()) % 2 == 0
                         ? size
                         : std::min<std::uintmax_t>(size, 4000);
    const auto place = std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
    const int bit = std::uniform_int_distribution(0, 7)(random);
    tally.round(fmt::format("{}, byte {}, bit {}", file, place, bit),
                saved.after(file, long_form() || round % 12 == 0, [&](const fs::path& path) {
                  change(path, [&](std::string& bytes) {
                    bytes[place] = static_cast<char>(bytes[place] ^ (1 << bit));
                  });
                }));
  }
}

TEST_CASE("cut, zeroed, missing and lengthened files are found") {
  Saved saved(kinds().front());
  Tally tally("d: other damage");
  int turn = 0;
  for (const std::string& file : saved.files()) {
    const auto size = fs::file_size(saved.path() / "base/checkpoints/step-00000004" / file);
    const auto check = [&](const std::string& what,
                           const std::function<void(const fs::path&)>& damage) {
      tally.round(file + " " + what, saved.after(file, long_form() || turn++ % 5 == 0, damage));
    };
    for (const std::uintmax_t left :
         {std::uintmax_t{0}, std::uintmax_t{1}, std::uintmax_t{8}, size / 3, size / 2, size - 1})
      if (long_form() || left == 0 || left == size / 2 || left == size - 1)
        check(fmt::format("cut to {}", left), [&](const fs::path& p) { fs::resize_file(p, left); });
    check("with zeros", [](const fs::path& path) {
      change(path, [](std::string& bytes) {
        const std::size_t count = std::min<std::size_t>(512, bytes.size() / 2);
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), count, '\0');
      });
    });
    check("removed", [](const fs::path& path) { fs::remove(path); });
    for (const std::size_t more : {std::size_t{1}, std::size_t{1000}})
      if (long_form() || more == 1)
        check(fmt::format("with {} bytes more", more), [more](const fs::path& path) {
          change(path, [more](std::string& bytes) { bytes.append(more, '\0'); });
        });
  }
}

}  // namespace sluice::test::damage_test
