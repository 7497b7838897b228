#include <cstdio>

#include "engine/io/utf8.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/apps/programs/foreign_text.h"
#include "tests/support/process/pseudo_terminal.h"

namespace sluice::test::printable_test {

namespace {

/// run.lock of a stranger.
Json writer(bool ended) {
  return {{"program", hostile}, {"host", hostile},  {"pid", 1},   {"started", 1},
          {"namespace", 1},     {"since", hostile}, {"beats", 1}, {"ended", ended}};
}

/// The lock of a run's folder.
class HeldLock {
 public:
  explicit HeldLock(const std::filesystem::path& file)
      : descriptor_(::open(file.c_str(), O_RDWR | O_CLOEXEC)) {
    REQUIRE(::flock(descriptor_, LOCK_EX | LOCK_NB) == 0);
  }
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;
  ~HeldLock() { ::close(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace

TEST_CASE("what a terminal would obey or not show is escaped, and nothing else", "[row16]") {
  for (const char* same : {"", "plain", "two\nlines\tand a tab", "é ß 中文 😀 ‾", "\u00A0"})
    CHECK(printable(same) == same);
  CHECK(printable("\x1b[2J\x07\r\x7f") == "\\x1b[2J\\x07\\x0d\\x7f");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xC2\x80|\xC2\x9B|\xC2\x9F") == "\\u0080|\\u009b|\\u009f");
  CHECK(printable("\x9B"
                  "2J\xFF\xE2\x80") == "\\x9b2J\\xff\\xe2\\x80");           // no UTF-8
  CHECK(printable("\xC0\x9B\xED\xA0\x80") == "\\xc0\\x9b\\xed\\xa0\\x80");  // overlong, surrogate
  for (const char32_t c :
       {0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2066,
        0x2067, 0x2068, 0x2069, 0x061C, 0x2060, 0xFEFF, 0x2028, 0x2029}) {
    std::string utf8;
    if (c >= 0x800) utf8 += static_cast<char>(0xE0 | c >> 12);
    utf8 += static_cast<char>(c >= 0x800 ? 0x80 | (c >> 6 & 0x3F) : 0xC0 | c >> 6);
    utf8 += static_cast<char>(0x80 | (c & 0x3F));
    char expected[8];
    std::snprintf(expected, sizeof expected, "\\u%04x", static_cast<unsigned>(c));
    CHECK(printable("x" + utf8 + "y") == std::string("x") + expected + "y");
  }
  CHECK(printable_line("a\nb\tc") == "a\\nb\\tc");
  CHECK(safe(printable(hostile)));
}

TEST_CASE("generated text is safe on a terminal and exact elsewhere", "[row16]") {
  const ForeignFolder in;
  const std::string model = (in.path() / "gpt2").string();
  const Arguments flags{"--model", model,           "--prompt", hostile + "\nx\ty", "--max-tokens",
                        "40",      "--temperature", "5",        "--threads",        "1"};
  const ProgramResult piped = run_program("generate", flags);
  INFO(piped.err);
  REQUIRE(piped.exit_code == 0);
  CHECK(piped.out.starts_with(hostile + "\nx\ty"));
  OnTerminal run("generate", flags, 80);
  std::string drawn = run.finish();
  CHECK(run.exit_code() == 0);
  std::erase(drawn, '\r');  // the terminal's own
  CHECK(safe(drawn));
  CHECK(drawn == printable(piped.out));
}

TEST_CASE("samples of a training are safe on a terminal and exact elsewhere", "[row16]") {
  const ForeignFolder in;
  Arguments flags = words(
      "--threads 1 --batch-size 2 --steps 1 --save never --val-every 0 --sample-tokens 20 --device "
      "cpu");
  flags.insert(flags.end(), {"--model", (in.path() / "gpt2").string() + "/", "--data",
                             (in.path() / "text.txt").string(), "--prompt", hostile, "--output",
                             (in.path() / "one").string()});
  const std::string piped = run_well("train_gpt2", flags);
  CHECK_THAT(piped, Contains("---\n" + hostile));
  flags.back() = (in.path() / "two").string();
  OnTerminal run("train_gpt2", flags, 80, {"TERM=dumb"});
  std::string drawn = run.finish();
  CHECK(run.exit_code() == 0);
  std::erase(drawn, '\r');
  CHECK(safe(drawn));
  CHECK_THAT(drawn, Contains("---\n" + printable(hostile)));
}

TEST_CASE("who holds a run's folder is told without what a terminal would obey", "[row16]") {
  const ForeignFolder in;
  in.write("run/run.lock", writer(false).dump());
  const std::string folder = in.path().string();
  const Arguments flags =
      tiny_training({"--save", "never", "--data", folder + "/text.txt", "--model",
                     folder + "/gpt2/", "--output", folder + "/run"});
  SECTION("on this computer") {
    const HeldLock lock(in.path() / "run/run.lock");
    const ProgramResult result = run_program("train_gpt2", flags);
    INFO(printable(result.out + result.err));
    CHECK(result.exit_code == 2);
    CHECK(safe(result.out + result.err));
    CHECK_THAT(result.err, Contains("is in use") && Contains("owned"));
  }
  SECTION("on another") {
    OnTerminal run("train_gpt2", flags, 200, {"TERM=dumb"});
    run.read_until("still does");
    in.write("run/new", writer(true).dump());
    std::filesystem::rename(in.path() / "run/new", in.path() / "run/run.lock");
    const std::string drawn = run.finish();
    INFO(printable(drawn));
    CHECK(safe(drawn));
    CHECK_THAT(drawn, Contains("waiting") && Contains("owned"));
  }
}

}  // namespace sluice::test::printable_test
