#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "apps/cli/progress.h"
#include "apps/cli/terminal.h"
#include "apps/report/step_printer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/process/pseudo_terminal.h"
#include "tests/support/process/redirected.h"
#include "tests/support/temp_dir.h"

// Tests the display of a run: on a terminal of any width, into a pipe, with --quiet and --verbose.

namespace sluice::test::terminal_test {
namespace {

struct Work : TempDir {
  Work() { write_tokens(path() / "t.bin", 600, 64); }
  std::string at(const std::string& name) const { return (path() / name).string(); }

  Arguments train(const std::string& output, int steps, const Arguments& more = {}) const {
    Arguments all = words(
        "--n-layer 1 --n-head 2 --n-embd 16 --context 16 --vocab-size 64 "
        "--batch-size 4 --threads 1 --save never --val-every 0 --val-steps 1");
    all.insert(all.end(),
               {"--steps", std::to_string(steps), "--output", at(output), "--data", at("t.bin")});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

/// Removes the colour codes.
std::string plain(const std::string& drawn) {
  std::string text;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const bool colour = drawn.compare(i, 2, "\x1b[") == 0 &&
                        drawn.find_first_not_of("0123456789", i + 2) == drawn.find('m', i + 2);
    if (colour)
      i = drawn.find('m', i);
    else
      text += drawn[i];
  }
  return text;
}

/// Everything that was drawn between returns to the first column, and that has a step.
std::vector<std::string> step_lines(const std::string& drawn) {
  std::vector<std::string> lines;
  std::string line;
  for (const char c : plain(drawn) + "\n") {
    if (c != '\r' && c != '\n') {
      line += c;
      continue;
    }
    if (const auto erase = line.find("\x1b["); erase == 0)
      line.erase(0, line.find_first_of("KJ") + 1);
    if (line.find("step ") != std::string::npos && line.find("loss ") != std::string::npos)
      lines.push_back(line);
    line.clear();
  }
  return lines;
}

std::size_t longest(const std::vector<std::string>& lines) {
  std::size_t length = 0;
  for (const auto& line : lines)
    length = std::max(length, line.size());
  return length;
}

std::vector<std::int64_t> printed_steps(const std::string& out) {
  std::vector<std::int64_t> steps;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("step ", 0) == 0) steps.push_back(std::stoll(line.substr(5)));
  return steps;
}

std::size_t logged_steps(const std::string& log) {
  std::size_t count = 0;
  for (auto at = log.find("\"train\""); at != std::string::npos; at = log.find("\"train\"", at + 1))
    ++count;
  return count;
}

const StepPrinter::Line some_step{.step = 123,
                                  .loss = 2.5,
                                  .norm = 0.75,
                                  .rate = 1e-3,
                                  .milliseconds = 81,
                                  .tokens_per_second = 25200,
                                  .mfu = 0.4,
                                  .memory = std::size_t{83} << 20,
                                  .details = "forward 31.0 ms"};

}  // namespace

TEST_CASE("a step's line has as much as fits, the important things first") {
  const auto fields = fields_of(some_step, 600, 95);
  const auto at = [&](std::size_t columns) { return fitted(fields, columns); };
  CHECK(at(1000) ==
        "step 123/600 | loss  2.5000 | norm  0.750 | lr 1.00e-03 |    81 ms |  25.2k tok/s | 40.0% "
        "MFU |   83 MiB | eta 1m35s | forward 31.0 ms");
  CHECK(at(77) == "step 123/600 | loss  2.5000 | norm  0.750 |  25.2k tok/s | eta 1m35s");
  CHECK(at(60) == "step 123/600 | loss  2.5000 |  25.2k tok/s | eta 1m35s");
  CHECK(at(43) == "step 123/600 | loss  2.5000 |  25.2k tok/s");
  CHECK(at(5) == "step ");
  std::size_t before = 0;
  for (std::size_t columns = 1; columns < 200; ++columns) {
    const std::size_t length = at(columns).size();
    CHECK(length <= columns);
    CHECK(length >= before);
    before = length;
  }
}

TEST_CASE("lines of several threads stay whole", "[threads]") {
  const Work work;
  const std::string file = work.at("said");
  {
    const Redirected redirected(STDOUT_FILENO, file);
    std::vector<std::thread> threads;
    for (const char c : {'a', 'b', 'c'})
      threads.emplace_back([c] {
        for (int i = 0; i < 10000; ++i)
          c == 'a' ? say_live(std::string(50, c), 50, std::string(60, 'k'))
                   : say(std::string(70, c) + "\n");
      });
    for (auto& thread : threads)
      thread.join();
    end_live_line();
  }
  std::istringstream lines(read_file(file));
  std::size_t whole = 0, kept_lines = 0;
  for (std::string line; std::getline(lines, line);) {
    // Text that is drawn over does not count as a line of its own.
    const std::string end =
        line.substr(line.rfind("\x1b[K") == std::string::npos ? 0 : line.rfind("\x1b[K") + 3);
    whole += end == std::string(70, 'b') || end == std::string(70, 'c');
    kept_lines += end == std::string(60, 'k');
    REQUIRE((end == std::string(60, 'k') || end == std::string(70, 'b') ||
             end == std::string(70, 'c')));
  }
  CHECK(whole == 20000);
  CHECK(kept_lines > 0);
}

TEST_CASE("on a terminal one line is drawn over, and never wraps") {
  const Work work;
  for (const int columns : {30, 80, 200}) {
    CAPTURE(columns);
    const std::string name = std::to_string(columns);
    OnTerminal run("train_gpt2", work.train(name, 30), columns);
    const std::string drawn = run.finish();
    CHECK(run.exit_code() == 0);
    const auto lines = step_lines(drawn);
    CHECK(lines.size() >= 30);
    CHECK(longest(lines) < static_cast<std::size_t>(columns));
    CHECK(std::ranges::count_if(lines, [](const std::string& line) {
            return line.find("step 30/30") != std::string::npos;
          }) == 2);  // as a live line, and as one that stays
    CHECK((plain(drawn).find("eta ") != std::string::npos) == (columns >= 80));
    CHECK((drawn.find("[=") != std::string::npos) == (columns == 200));
    CHECK((plain(drawn).find("MFU") != std::string::npos) == (columns == 200));
    CHECK(count_lines(plain(drawn)) < 30);
    CHECK(logged_steps(read_file(work.path() / name / "log.jsonl")) == 30);
  }
}

TEST_CASE("the live line follows the terminal's width") {
  const Work work;
  OnTerminal run("train_gpt2", work.train("out", 3000), 200);
  run.read_until("step   20/3000");
  run.resize(60);
  // Output in flight may still have the old width.
  const std::size_t before = run.read_until("step  300/3000").size();
  run.resize(100);
  const std::string narrow = run.read_until("step 3000/3000").substr(before);
  run.finish();
  const auto lines = step_lines(narrow);
  REQUIRE(lines.size() > 1000);
  CHECK(longest(lines) > 60);
  CHECK(longest(lines) < 100);
}

TEST_CASE("colours are for terminals whose user wants them") {
  const Work work;
  int number = 0;
  const auto drawn = [&](const Arguments& environment) {
    OnTerminal run("train_gpt2", work.train(std::to_string(number++), 4), 160, environment);
    return run.finish();
  };
  const std::string green = "\x1b[32m";
  CHECK_THAT(drawn({}), Contains(green) && Contains("\r\x1b[K"));
  CHECK_THAT(drawn({"NO_COLOR="}), Contains(green));
  CHECK_THAT(drawn({"NO_COLOR=0"}), !Contains(green) && Contains("\r\x1b[K"));
  CHECK_THAT(drawn({"TERM=dumb"}), !Contains("\x1b") && Contains("step 2/4"));
  CHECK_THAT(drawn({"TERM="}), !Contains("\x1b"));
  OnTerminal dumb("train_gpt2", work.train("dumb", 3), 60, {"TERM=dumb"});
  const auto lines = step_lines(dumb.finish());
  CHECK(lines.size() == 3);
  CHECK(longest(lines) <= 60);
  OnTerminal wrong("train_gpt2", {"--stps", "4"}, 80);
  CHECK_THAT(wrong.finish(), Contains("\x1b[31merror:\x1b[0m unknown flag"));
  OnTerminal plain_wrong("train_gpt2", {"--stps", "4"}, 80, {"NO_COLOR=1"});
  CHECK_THAT(plain_wrong.finish(),
             Contains("train_gpt2: error: unknown flag") && !Contains("\x1b"));
}

TEST_CASE("elsewhere a run prints about 50 steps, or what is asked for, and the log has all") {
  const Work work;
  const auto steps_of = [&](const std::string& name, int steps, const Arguments& more) {
    const std::string out = run_well("train_gpt2", work.train(name, steps, more));
    CHECK(out.find('\x1b') == std::string::npos);
    CHECK(logged_steps(read_file(work.path() / name / "log.jsonl")) ==
          static_cast<std::size_t>(steps));
    return printed_steps(out);
  };
  const auto usual = steps_of("usual", 400, {});
  CHECK(usual.size() == 51);
  CHECK(usual[0] == 1);
  CHECK(usual[1] == 8);
  CHECK(usual.back() == 400);
  CHECK(steps_of("few", 9, {}).size() == 9);
  CHECK(steps_of("tens", 25, {"--log-every", "10"}) == std::vector<std::int64_t>{1, 10, 20, 25});
  CHECK(steps_of("quiet", 9, {"--quiet"}).empty());
  CHECK(steps_of("verbose", 200, {"--verbose"}).size() == 200);
}

TEST_CASE("with --quiet a run tells how it ended, with --verbose what its time went to") {
  const Work work;
  const std::string quiet = run_well("train_gpt2", work.train("quiet", 5, {"--quiet"}));
  CHECK(quiet.rfind("\ndone         5 of 5 steps", 0) == 0);
  CHECK(count_lines(quiet) == 3);
  const std::string verbose = run_well("train_gpt2", work.train("verbose", 5, {"--verbose"}));
  CHECK_THAT(verbose, Contains("| forward ") && Contains("ms, backward ") && Contains("log.jsonl"));
  const ProgramResult both =
      run_program("train_gpt2", work.train("both", 5, {"--quiet", "--verbose"}));
  CHECK(both.exit_code == 2);
  CHECK_THAT(both.err, Contains("--quiet and --verbose"));
}

TEST_CASE("on a terminal --log-every leaves a line every so many steps") {
  const Work work;
  OnTerminal run("train_gpt2", work.train("out", 35, {"--log-every", "10"}), 80);
  std::istringstream lines(plain(run.finish()));
  std::vector<std::int64_t> stay;
  for (std::string line; std::getline(lines, line);) {
    // The last drawing on a line is the one that remains visible.
    const auto step = line.rfind("\x1b[Kstep ");
    if (step != std::string::npos) stay.push_back(std::stoll(line.substr(step + 8)));
  }
  CHECK(stay == std::vector<std::int64_t>{1, 10, 20, 30, 35});
}

TEST_CASE("standard streams that are closed are opened, so that no file takes their place") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDIN_FILENO);
    ::close(STDOUT_FILENO);
    open_standard_streams();
    const int next = ::open("/dev/null", O_RDONLY);
    ::_exit(next > STDERR_FILENO && ::write(STDOUT_FILENO, "x", 1) == 1 ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a run whose stdout is closed trains, and writes to no other file") {
  const Work work;
  std::string command = "'" SLUICE_BIN_DIR "/train_gpt2'";
  for (const auto& argument : work.train("out", 5))
    command += " '" + argument + "'";
  CHECK(std::system((command + " >&-").c_str()) == 0);
  std::istringstream lines(read_file(work.path() / "out" / "log.jsonl"));
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    CHECK(nlohmann::json::accept(line));
  CHECK(count >= 7);
}

TEST_CASE("stages of scripts show ninja's progress on a terminal, and how long they took") {
  const Work work;
  const std::string script = "set -euo pipefail; build='" + work.path().string() +
                             "'; source '" SLUICE_SOURCE_DIR
                             "/scripts/stages.sh'; "
                             "stage building log sh -c 'echo \"[7/10] CXX a.o\"; "
                             "until [ -e " +
                             work.at("go") + " ]; do sleep 0.1; done'";
  {
    OnTerminal run("/bin/bash", {"-c", script}, 80);
    CHECK_THAT(run.read_until("70 %"), Contains("\r\x1b[K   [7/10] 70 %"));
    write_file(work.path() / "go", "");
    CHECK_THAT(run.finish(), Contains("   done in "));
    CHECK(run.exit_code() == 0);
  }
  const std::string piped = run_well("/bin/bash", {"-c", script});
  CHECK(piped.rfind("== building (log: ", 0) == 0);
  CHECK(piped.find("70 %") == std::string::npos);
  CHECK(count_lines(piped) == 2);
  CHECK_THAT(read_file(work.path() / "log.log"), Contains("[7/10] CXX a.o"));
}

}  // namespace sluice::test::terminal_test
