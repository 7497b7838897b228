#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/plan/cost/device_profile.h"
#include "tests/support/catch.h"
#include "tests/support/program.h"

// Predictions for many ranks as a user of `plan` meets them.

namespace sluice::test::scaling_program_test {
namespace {

using Json = nlohmann::json;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

const std::string h100 = "--model gpt2 --device-profile h100 --batch-size 64";

Json json_of(const std::string& flags) {
  return Json::parse(run_well("plan", words(flags + " --json")));
}

}  // namespace

TEST_CASE("plan says what 8 ranks of GPT-2 send, and prints rows up to 4096", "[scaling]") {
  const std::string flags = h100 + " --dp 8 --gradients fp32 --scaling";
  const Json json = json_of(flags);
  const Json& one = json.at("communication");
  CHECK(one.at("ranks") == 8);
  CHECK(one.at("batch_per_rank") == 8);
  // 2 * 7/8 * 4 bytes of 124,439,808 parameters; 25 MiB go into 497,759,232 bytes 19 times.
  CHECK(one.at("gradient_bytes_sent") == 871'078'656);
  CHECK(one.at("weight_bytes_sent") == 0);
  CHECK(one.at("messages") == 19 * 2 * 7);
  CHECK(one.at("seconds").get<double>() == Approx(871'078'656 / 337.5e9 + 266 * 3.4e-6));
  CHECK(one.at("exposed_seconds") < one.at("seconds"));

  const std::string table = run_well("plan", words(flags));
  CHECK_THAT(table, Contains("communication  830.7 MiB sent per rank a step (gradients 830.7, "
                             "weights 0.0)"));
  const auto lines = lines_of(table);
  const Json& rows = json.at("scaling");
  REQUIRE(rows.size() == 13);
  REQUIRE(lines.size() > rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& row = rows[i];
    const Json& sent = row.at("communication");
    const std::string& line = lines[lines.size() - rows.size() + i];
    INFO(line << "\n" << row.dump());
    CHECK(row.at("ranks") == 1 << i);
    std::istringstream cells(line);
    double ranks, mib, ms, exposed, step, rate, percent, gib;
    std::string bar, unit, strong, speed_up;
    cells >> ranks >> mib >> ms >> exposed >> bar >> step >> rate >> percent >> unit >> gib;
    cells >> bar >> strong >> speed_up;
    REQUIRE(cells);
    const auto near = [](double value, double digit) { return Approx(value).margin(digit); };
    CHECK(ranks == 1 << i);
    CHECK(mib == near(sent.at("gradient_bytes_sent").get<double>() / (1 << 20), 0.05));
    CHECK(ms == near(sent.at("seconds").get<double>() * 1e3, 0.005));
    CHECK(exposed == near(sent.at("exposed_seconds").get<double>() * 1e3, 0.005));
    CHECK(step == Approx(row.at("step_seconds").get<double>()).epsilon(1e-3));
    CHECK(rate == near(row.at("tokens_per_second").get<double>(), 0.5));
    CHECK(percent == near(row.at("efficiency").get<double>() * 100, 0.05));
    CHECK(gib == near(row.at("state_bytes").get<double>() / (1 << 30), 0.00005));
    if (row.at("strong").is_null()) {
      CHECK(i > 6);
      CHECK(strong + speed_up == "--");
    } else {
      CHECK(std::stod(strong) ==
            Approx(row.at("strong").at("step_seconds").get<double>()).epsilon(1e-3));
      CHECK(std::stod(speed_up) ==
            Approx(row.at("strong").at("speed_up").get<double>()).epsilon(1e-3));
    }
  }
  CHECK(rows[3].at("communication").at("seconds") == one.at("seconds"));
  CHECK(rows[3].at("efficiency") == one.at("efficiency"));
  // As many sequences in all: both ways of counting meet at the ranks asked for.
  CHECK(rows[3].at("strong").at("step_seconds") == rows[3].at("step_seconds"));
}

TEST_CASE("without ranks a plan is as it was, and the first row is the plan's time", "[scaling]") {
  const std::string plain = run_well("plan", words(h100));
  CHECK_THAT(plain, !Contains("sent") && !Contains("ranks"));
  CHECK_FALSE(json_of(h100).contains("communication"));
  CHECK_FALSE(json_of(h100).contains("scaling"));
  // The command repeats what was given.
  const auto planned = [](const std::string& text) { return text.substr(0, text.find("command")); };
  CHECK(planned(run_well("plan", words(h100 + " --dp 1 --zero 1"))) == planned(plain));
  std::vector<double> state;
  for (const std::string more :
       {" --micro-batch 2 --placement auto:block --state-layout split",
        " --micro-batch 1 --seq-len 64 --placement offload-state --state-layout split",
        " --gradients bf16"}) {
    INFO(more);
    const Json json = json_of(h100 + more + " --scaling");
    state.push_back(json.at("scaling")[0].at("state_bytes"));
    CHECK_FALSE(json.contains("communication"));
    CHECK(json.at("scaling")[0].at("step_seconds").get<double>() ==
          Approx(json.at("chosen").at("predicted_seconds").at("total").get<double>()));
  }
  // Wherever it rests.
  CHECK(state[0] == Approx(state[1]).epsilon(0.001));
}

TEST_CASE("plan's links come from flags, else from the profile", "[scaling]") {
  const Json usual = json_of(h100 + " --scaling");
  CHECK(usual.at("link").at("bytes_per_second") == known_profile("h100").link_bandwidth);
  CHECK(usual.at("link").at("latency_seconds") == known_profile("h100").link_latency);
  // Rings of the GPUs leave a node once.
  CHECK(usual.at("link_beyond_node").at("bytes_per_second") == 12.5e9);
  CHECK(usual.at("link_beyond_node").at("latency_seconds").get<double>() ==
        Approx((10e-6 + 7 * known_profile("h100").link_latency) / 8));
  const Json staged = json_of(h100 + " --scaling --communication staged");
  CHECK(staged.at("link_beyond_node").at("bytes_per_second") == 12.5e9 / 8);
  CHECK(staged.at("link_beyond_node").at("latency_seconds").get<double>() == Approx(10e-6));
  const Json own = json_of(h100 +
                           " --scaling --dp 64 --zero 1 --link 25GiB/s,2.5us "
                           "--ranks-per-node 16 --network 400GB,4");
  CHECK(own.at("link").at("bytes_per_second").get<double>() == 25.0 * (1 << 30));
  CHECK(own.at("link").at("latency_seconds").get<double>() == Approx(2.5e-6));
  CHECK(own.at("ranks_per_node") == 16);
  CHECK(own.at("link_beyond_node").at("bytes_per_second").get<double>() == 25.0 * (1 << 30));
  CHECK(own.at("link_beyond_node").at("latency_seconds").get<double>() ==
        Approx((4e-6 + 15 * 2.5e-6) / 16));
  const Json& rows = own.at("scaling");
  for (const std::size_t i : {std::size_t{6}, std::size_t{12}})
    CHECK(rows[i].at("state_bytes").get<double>() ==
          Approx(rows[0].at("state_bytes").get<double>() / rows[i].at("ranks").get<double>()));
  // Weights in 16 bits, gradients in 32.
  CHECK(own.at("communication").at("weight_bytes_sent").get<double>() * 2 ==
        Approx(own.at("communication").at("gradient_bytes_sent").get<double>()));
  CHECK(json_of(h100 + " --dp 8 --overlap=false").at("communication").at("exposed_seconds") ==
        json_of(h100 + " --dp 8").at("communication").at("seconds"));
  CHECK(json_of(h100 + " --dp 8 --bucket-size 50MiB").at("communication").at("messages") ==
        10 * 2 * 7);
}

TEST_CASE("plans for ranks that cannot be are refused", "[scaling]") {
  const std::pair<const char*, const char*> rows[] = {
      {"--dp 7", "--batch-size 64 is not divisible by --dp 7: 9 * 7 = 63"},
      {"--dp 128", "0 * 128 = 0"},
      {"--dp 0", "--dp"},
      {"--dp 131072 --batch-size 131072", "at most 65536 ranks"},
      {"--scaling --link fast", "--link: 'fast' is not a size"},
      {"--scaling --link 12", "--link 12"},
      {"--scaling --link -1GB", "--link -1GB"},
      {"--scaling --network 0", "--network 0"},
      {"--scaling --link 1GB,-1", "--link 1GB,-1: after the comma"},
      {"--scaling --link 1GB,nanus", "after the comma are the microseconds of a message"},
      {"--scaling --link 1GB,", "after the comma"},
      {"--scaling --network 1GB,x", "--network 1GB,x: after the comma"},
      {"--scaling --ranks-per-node 0", "--ranks-per-node"},
      {"--scaling --bucket-size 0", "--bucket-size 0"},
  };
  for (const auto& [flags, why] : rows) {
    INFO(flags);
    // The program refuses a flag given twice, so a row's own batch size replaces the common one.
    const bool own_batch = std::string(flags).find("--batch-size") != std::string::npos;
    const std::string machine = "--model gpt2 --device-profile h100 ";
    const ProgramResult result = run_program(
        "plan", words(machine + (own_batch ? "" : "--batch-size 64 ") + std::string(flags)));
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(why));
  }
  // Planning alone knows these flags.
  CHECK(run_program("train_gpt2", {"--scaling"}).exit_code == 2);
}

}  // namespace sluice::test::scaling_program_test
