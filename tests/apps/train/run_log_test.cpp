#include "apps/output/run_log.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/process/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::run_log_test {
namespace {

using Json = nlohmann::json;

std::vector<Json> lines_of(const std::filesystem::path& file) {
  std::vector<Json> lines;
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);)
    lines.push_back(Json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("half a line at the end of a log is cut off, whole ones stay") {
  const TempDir dir;
  const auto file = dir.path() / "log.jsonl";
  const std::string whole = "{\"event\":\"a\"}\n{\"event\":\"b\"}\n";
  for (const std::string& half : {std::string(), std::string("{\"eve"), std::string(9000, 'x')}) {
    write_file(file, whole + half);
    RunLog(file).write("c", {{"step", 1}});
    const auto lines = lines_of(file);
    REQUIRE(lines.size() == 3);
    CHECK(lines[1].at("event") == "b");
    CHECK(lines[2].at("event") == "c");
  }
  write_file(file, "{\"ev");
  RunLog(file).write("c", {{"step", 1}});
  CHECK(lines_of(file).size() == 1);
}

TEST_CASE("a log that cannot be written goes on later and says what is missing") {
  const TempDir dir;
  const auto file = dir.path() / "log.jsonl";
  RunLog log(file);
  log.write("train", {{"step", 1}});
  {
    const FileSizeLimit full(80);  // in the middle of the next line
    log.write("train", {{"step", 2}});
    log.write("train", {{"step", 3}});
    log.write("train", {{"step", 4}});
  }
  CHECK(lines_of(file).size() == 1);
  log.write("train", {{"step", 5}});
  const auto lines = lines_of(file);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].at("event") == "warning");
  CHECK_THAT(lines[1].at("message").get<std::string>(), Contains("3 lines are missing") &&
                                                            Contains("log.jsonl") &&
                                                            Contains("File too large"));
  CHECK(lines[2].at("step") == 5);
}

TEST_CASE("every event has its time, in order") {
  const TempDir dir;
  const auto file = dir.path() / "log.jsonl";
  RunLog log(file);
  log.write("a", {{"step", 1}});
  log.write("b", {{"step", 2}});
  const auto lines = lines_of(file);
  REQUIRE(lines.size() == 2);
  const auto first = lines[0].at("time").get<std::string>();
  const auto second = lines[1].at("time").get<std::string>();
  for (const auto& time : {first, second}) {
    INFO(time);
    REQUIRE(time.size() == 24);
    std::string digits_away = time;
    for (char& c : digits_away)
      if (c >= '0' && c <= '9') c = '9';
    CHECK(digits_away == "9999-99-99T99:99:99.999Z");
  }
  CHECK(first <= second);
}

TEST_CASE("a log whose path is wrong is the user's to mend") {
  const TempDir dir;
  try {
    const RunLog log(dir.path());
    FAIL("a folder was opened as a log");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
  }
}

}  // namespace sluice::test::run_log_test
