#include <sched.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/runtime.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Plans as a user meets them: printed by `plan`, kept by train_gpt2.

namespace sluice::test::plan_program_test {
namespace {

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr std::int64_t gib = std::int64_t{1} << 30;

void check_json(const Json& json, std::int64_t device_budget) {
  CHECK(json.at("device_budget_bytes") == device_budget);
  std::vector<Json> plans = json.at("others");
  plans.push_back(json.at("chosen"));
  for (const Json& plan : plans) {
    INFO(plan.dump());
    std::int64_t sum = 0;
    for (const auto& [use, bytes] : plan.at("device_peak_by_use").items())
      sum += bytes.get<std::int64_t>();
    CHECK(sum == plan.at("device_peak_bytes"));
    CHECK(plan.at("device_peak_bytes") <= plan.at("device_bytes"));
    CHECK(plan.at("device_bytes").get<std::int64_t>() +
              json.at("device_reserve_bytes").get<std::int64_t>() <=
          json.at("device_budget_bytes"));
    CHECK(plan.at("host_bytes").get<std::int64_t>() +
              json.at("host_reserve_bytes").get<std::int64_t>() <=
          json.at("host_budget_bytes"));
    const Json& seconds = plan.at("predicted_seconds");
    double parts = 0;
    for (const auto& [part, value] : seconds.items()) {
      CHECK(value.get<double>() >= 0);
      if (part != "total") parts += value.get<double>();
    }
    CHECK(parts == Approx(seconds.at("total").get<double>()));
    CHECK_THAT(plan.at("flags").get<std::string>(), Contains("--micro-batch "));
  }
}

/// Runs `plan` with these arguments, as JSON and as a table.
Json plans_well(const Arguments& arguments, std::int64_t device_budget, bool with_table = true) {
  Json json = Json::parse(run_well("plan", arguments + Arguments{"--json"}));
  check_json(json, device_budget);
  if (!with_table) return json;
  const std::string table = run_well("plan", arguments);
  CHECK_THAT(table, Contains("flags") && Contains("predicted") && Contains("together"));
  CHECK_THAT(table, Contains(json.at("chosen").at("flags").get<std::string>()));
  return json;
}

/// A folder with data for a small model whose matrices count as large.
struct Data : TempDir {
  Data() {
    write_tokens(path() / "t.bin", 600, 64);
    std::string text;
    for (int i = 0; i < 300; ++i)
      text += "to be or not to be " + std::to_string(i) + "\n";
    write_file(path() / "text.txt", text);
  }
  Arguments flags(const std::string& more, const char* file = "t.bin") const {
    return words("--n-layer 2 --n-head 2 --n-embd 64 --context 16 --batch-size 4 --data " +
                 (path() / file).string() + " " + more) +
           (file == std::string("t.bin") ? words("--vocab-size 64") : Arguments{});
  }
};

/// The last line of a run's log.
Json end_of(const std::filesystem::path& output) {
  std::istringstream log(read_file(output / "log.jsonl"));
  Json last;
  for (std::string line; std::getline(log, line);)
    last = Json::parse(line);
  REQUIRE(last.at("event") == "end");
  return last;
}

std::vector<std::string> devices() {
  std::vector<std::string> names{"cpu"};
  if (cuda_devices() > 0) names.emplace_back("cuda");
  return names;
}

}  // namespace

TEST_CASE("gpt2-large in 11 GiB, and gpt2-xl in 11 and 16, have plans", "[plan]") {
  const Json large = plans_well(words("--model gpt2-large --gpu-memory 11GiB --seq-len 1024 "
                                      "--batch-size 64 --device-profile 2080ti"),
                                11 * gib, long_form());
  CHECK(large.at("parameters") == 774'030'080);
  CHECK(large.at("batch_size") == 64);
  CHECK(large.at("seq_len") == 1024);
  CHECK_THAT(large.at("chosen").at("flags").get<std::string>(), Contains("--gradients fp32"));
  const Json xl =
      plans_well(words("--model gpt2-xl --gpu-memory 11GiB --host-memory 16GiB"), 11 * gib);
  CHECK(xl.at("parameters") == 1'557'611'200);
  CHECK(xl.at("host_budget_bytes") == 16 * gib);
  // The split layout rounds no state.
  CHECK_THAT(xl.at("chosen").at("flags").get<std::string>(), Contains("--state-layout split"));
}

TEST_CASE("a run measures what was planned for it", "[plan]") {
  const Data data;
  struct Row {
    const char *file, *flags;
    bool gpu_only = false;
  };
  const Row rows[] = {
      {"t.bin", "--steps 3"},
      {"t.bin", "--steps 1"},
      {"t.bin", "--steps 3 --save-every 1 --precision bf16"},
      {"t.bin", "--steps 2 --micro-batch 1 --seq-len 4"},
      {"text.txt", "--steps 3 --val-every 2 --sample-every 1 --sample-tokens 30"},
      {"text.txt", "--steps 2 --micro-batch 1 --seq-len 4 --sample-tokens 7 --prompt abcde"},
      {"text.txt", "--steps 2 --sample-tokens 0 --precision bf16 --placement auto:block"},
      {"t.bin", "--steps 3 --placement offload-state --precision bf16 --save-every 2", true},
      {"text.txt",
       "--steps 3 --placement resident*1,offload-state --stream-chunks 3000*2 "
       "--sample-tokens 5",
       true},
      {"t.bin", "--steps 3 --micro-batch 1 --placement auto:block+host", true},
      {"t.bin", "--steps 3 --placement resident:block+host*1,resident:none", true},
  };
  int number = 0;
  for (const std::string& device : devices())
    for (const auto& [file, flags, gpu_only] : rows) {
      if (gpu_only && device == "cpu") continue;
      // In the short form the emulated GPU, which is slow, leaves the CPU what that can do too, but
      // for one row.
      const bool both = std::string_view(flags).find("--prompt") != std::string_view::npos;
      if (!gpu_only && device == "cuda" && !both && !long_form()) continue;
      INFO(device << ": " << file << " " << flags);
      const auto out = data.path() / std::to_string(number++);
      run_well("train_gpt2",
               data.flags(flags, file) + Arguments{"--device", device, "--output", out.string()});
      const Json end = end_of(out);
      CHECK(end.at("engine_peak_bytes") == end.at("planned_bytes"));
    }
}

TEST_CASE("at its plan's budget a run trains, and one byte below it is refused", "[plan]") {
  const Data data;
  const std::pair<const char*, const char*> rows[] = {
      {"--precision bf16", "--placement auto:gelu+ln --micro-batch 2"},
      {"--precision bf16",
       "--placement resident*1,offload-state --micro-batch 1 --stream-chunks 3000"},
      {"--precision fp32", "--placement resident:block --micro-batch 4"}};
  int number = 0;
  for (const std::string& device : devices())
    for (const auto& [precision, wishes] : rows) {
      INFO(device << ": " << precision << " " << wishes);
      if (device == "cpu" && std::string(wishes).find("resident") != std::string::npos) continue;
      const Arguments shape =
          data.flags("--steps 2 --device " + device + " " + std::string(precision));
      const Json json = Json::parse(run_well("plan", shape + words(wishes) + Arguments{"--json"}));
      const Json& chosen = json.at("chosen");
      const auto need = chosen.at("device_bytes").get<std::int64_t>() +
                        json.at("device_reserve_bytes").get<std::int64_t>();
      const auto told = [&](std::int64_t bytes) {
        const auto out = data.path() / std::to_string(number++);
        return shape + words(chosen.at("flags")) +
               Arguments{device == "cpu" ? "--host-memory" : "--gpu-memory", std::to_string(bytes),
                         "--output", out.string()};
      };
      const ProgramResult refused = run_program("train_gpt2", told(need - 1));
      CHECK(refused.exit_code == 2);
      CHECK(count_lines(refused.err) == 1);
      CHECK_THAT(refused.err, Contains(" 1 too many"));
      run_well("train_gpt2", told(need));
    }
}

TEST_CASE("a probe that was saved here plans as this machine does", "[plan]") {
  const Data data;
  const std::string probe = (data.path() / "probe.json").string();
  run_well("plan", words("--save-probe " + probe + " --device cpu"));
  const Json saved = Json::parse(read_file(probe));
  CHECK(saved.at("gpu") == false);
  const Arguments shape = words("--n-layer 2 --n-embd 64 --vocab-size 64 --json");
  const Json from_file = Json::parse(run_well("plan", shape + Arguments{"--probe", probe}));
  const Json here = Json::parse(run_well("plan", shape + Arguments{"--device", "cpu"}));
  CHECK(from_file.at("device_budget_bytes") == here.at("device_budget_bytes"));
  CHECK(from_file.at("chosen").at("device_bytes") == here.at("chosen").at("device_bytes"));
}

TEST_CASE("a list of no ways is refused", "[cluster]") {
  const ProgramResult none = run_program("plan", words("--device cpu --gpus 8 --top 0"));
  CHECK(none.exit_code == 2);
  CHECK_THAT(none.err, Contains("--top: '0' is not a whole number from 1"));
}

TEST_CASE("a cluster's plan does not depend on the number of cores", "[cluster]") {
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &all))
    ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  const std::string command =
      "--device cpu --n-layer 4 --n-head 4 --n-embd 32 --vocab-size 64 --context 16 --batch-size 8 "
      "--gpus 8 --top 3";
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const ProgramResult alone = run_program("plan", words(command));
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
  REQUIRE(alone.exit_code == 0);
  CHECK(run_well("plan", words(command)) == alone.out);
  // The command that is printed has the flag too.
  const auto plan_in = [](const std::string& text) {
    return text.substr(0, text.find("command "));
  };
  CHECK(plan_in(run_well("plan", words(command + " --threads 5"))) == plan_in(alone.out));
}

TEST_CASE("a plan for GPUs that exchange by NCCL leaves memory for it", "[plan]") {
  const auto reserve = [](const std::string& flags) {
    const ProgramResult result = run_program(
        "plan", words("--model gpt2 --device-profile h100 --batch-size 16 --json " + flags));
    CHECK(result.err.empty());
    REQUIRE(result.exit_code == 0);
    return Json::parse(result.out).at("device_reserve_bytes").get<std::size_t>();
  };
  const std::size_t driver = reserve("");
  for (const std::string ranks : {"--dp 2", "--pp 2", "--tp 2"}) {
    CAPTURE(ranks);
    CHECK(reserve(ranks) == driver + (std::size_t{1} << 30));
    CHECK(reserve(ranks + " --communication staged") == driver);
  }
}

}  // namespace sluice::test::plan_program_test
