#include "apps/report/report.h"

#include <nlohmann/json.hpp>

#include "apps/report/cluster_report.h"
#include "tests/support/catch.h"

namespace sluice::test::report_test {
namespace {

Figures shard(int rank, std::size_t bytes, const std::string& holds, std::size_t excess) {
  return {{"", rank, {"rank", 5}},
          {"bytes", bytes, {"MiB", 6, "{:.1f}", in_mib}},
          {"peak_bytes", bytes / 2},
          {"", holds, {"holds"}},
          {"bytes_above", excess, {" ", 0, excess > 0 ? "{} bytes too many" : ""}}};
}

TEST_CASE("a report says its figures to people and to programs", "[plan]") {
  Report report;
  report.row("model", "2 layers", {{"layers", 2}});
  report.row("", "in words alone");
  report.table("shards", {shard(0, 3 << 19, "wte", 0), shard(1, 1 << 20, "block 1", 8)}, "above\n");
  Report part;
  part.row("run", "0.50 s", {{"seconds", 0.5}});
  report.append(part);
  report.append(part, "part");
  CHECK(report.text ==
        "model        2 layers\n"
        "             in words alone\n"
        "\n"
        "above\n"
        " rank    MiB  holds\n"
        "    0    1.5  wte\n"
        "    1    1.0  block 1  8 bytes too many\n"
        "run          0.50 s\n"
        "run          0.50 s\n");
  CHECK(to_json(report.figures).dump() ==
        R"({"layers":2,"shards":[)"
        R"({"bytes":1572864,"peak_bytes":786432,"bytes_above":0},)"
        R"({"bytes":1048576,"peak_bytes":524288,"bytes_above":8}],)"
        R"("seconds":0.5,"part":{"seconds":0.5}})");
}

TEST_CASE("a table without rows is an empty array and no lines", "[plan]") {
  Report report;
  report.table("ways", {});
  CHECK(report.text.empty());
  CHECK(to_json(report.figures).dump() == R"({"ways":[]})");
}

}  // namespace
TEST_CASE("the reason why a way is slower is the part that takes most time beyond the best's",
          "[cluster]") {
  const struct {
    const char* name;
    double ClusterTime::*part;
  } parts[] = {{"the pipeline's bubble", &ClusterTime::bubble},
               {"messages between stages", &ClusterTime::messages},
               {"the tied table", &ClusterTime::table},
               {"gradients among replicas", &ClusterTime::data},
               {"the update", &ClusterTime::update},
               {"streaming state", &ClusterTime::stall}};
  // Every part of the other takes two seconds more, and its computing and waiting one.
  const ClusterTime best{.compute = 10,
                         .bubble = 1,
                         .messages = 2,
                         .tensor = 3,
                         .table = 4,
                         .data = 5,
                         .update = 6,
                         .stall = 7};
  ClusterTime other = best;
  other.compute += 2;
  other.tensor += 1;
  for (const auto& [name, part] : parts)
    other.*part += 2;
  const auto why = [&](const ClusterTime& time) {
    return why_slower({.time = best}, {.time = time});
  };
  for (const auto& [name, part] : parts) {
    ClusterTime slow = other;
    slow.*part += 0.5;
    CHECK(why(slow) == std::string(name) + " (+2.5 s)");
  }
  ClusterTime computing = other;
  computing.compute += 1.5;
  CHECK(why(computing) == "computing (+2.5 s)");
  ClusterTime waiting = other;
  waiting.tensor += 1.5;
  waiting.compute += 1.5;
  CHECK(why(waiting) == "waiting for other shards (+2.5 s)");
}

}  // namespace sluice::test::report_test
