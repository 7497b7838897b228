#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>

#include "parallel/pipeline/schedule_text.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Tests the output of `plan` for pipelines.

namespace sluice::test::pipeline_plan_test {
namespace {

const std::string shape =
    "--device cpu --n-layer 4 --n-head 2 --n-embd 32 --vocab-size 64 --context 16 "
    "--batch-size 8 --micro-batch 1 ";

Json pipeline_of(const std::string& flags) {
  return Json::parse(run_well("plan", words(shape + flags + " --json"))).at("pipeline");
}

}  // namespace

TEST_CASE("a plan shows the pipeline's schedule, stages and ranks", "[plan]") {
  const std::string text = run_well("plan", words(shape + "--pp 2"));
  CHECK_THAT(text, Contains("1f1b: 2 stages on 2 ranks, 8 micro-batches"));
  CHECK_THAT(text, Contains(to_grid(one_forward_one_backward(2, 8))));
  CHECK_THAT(text, Contains("wte, wpe, blocks 0 to 1\n"));
  // Milliseconds of the forward pass, the backward pass and the message.
  const std::regex row("( +[0-9]+[.][0-9]{3}){3} +wte, wpe, blocks 0 to 1\n");
  CHECK(std::regex_search(text, row));
  CHECK_THAT(text, Contains("blocks 2 to 3, ln_f, wte (a copy)\n"));
  CHECK_THAT(text, Contains("bubble       11.1 % if all stages cost the same"));
  CHECK_THAT(text, !Contains("tokens/s"));
  CHECK_THAT(run_well("plan", words(shape)), Contains("tokens/s") && !Contains("pipeline"));
}

TEST_CASE("a plan in JSON counts what the ranks of a pipeline hold and send", "[plan]") {
  const Json plain = pipeline_of("--pp 2");
  constexpr std::int64_t message = 16 * 32 * 4, table = 64 * 32;
  constexpr std::int64_t block = 12 * 32 * 32 + 13 * 32;
  CHECK(plain.at("message_bytes") == message);
  CHECK(plain.at("bytes_between_stages") == 2 * 8 * message);
  CHECK(pipeline_of("--pp 2 --seq-len 4").at("message_bytes") == message / 4);
  CHECK(plain.at("tied_table").at("ranks") == Json{0, 1});
  CHECK(plain.at("tied_table").at("bytes_each_way") == table * 4);
  REQUIRE(plain.at("stages").size() == 2);
  CHECK(plain.at("stages")[0].at("parameters") == table + 16 * 32 + 2 * block);
  CHECK(plain.at("stages")[1].at("parameters") == 2 * block + 2 * 32 + table);
  CHECK(plain.at("stages")[1].at("first_block") == 2);
  // The last stage has the head.
  CHECK(plain.at("stages")[1].at("forward_seconds") > plain.at("stages")[0].at("forward_seconds"));
  CHECK(plain.at("ranks")[0].at("live_micro_batches") == 2);
  CHECK(plain.at("ranks")[1].at("live_micro_batches") == 1);
  CHECK(plain.at("ranks")[0].at("device_bytes") > plain.at("ranks")[1].at("device_bytes"));
  CHECK(plain.at("ranks")[0].at("bytes_sent") == 8 * message);
  CHECK(plain.at("ranks")[0].at("bytes_reduced") == 0);
  const Json& bubble = plain.at("bubble");
  CHECK(bubble.at("equal_stages").get<double>() == Approx(1.0 / 9));
  CHECK(bubble.at("predicted").get<double>() ==
        Approx(bubble.at("equal_stages").get<double>() + bubble.at("imbalance").get<double>() +
               bubble.at("messages").get<double>()));

  const Json gpipe = pipeline_of("--pp 2 --pipeline gpipe");
  CHECK(gpipe.at("ranks")[0].at("live_micro_batches") == 8);
  CHECK(gpipe.at("ranks")[0].at("device_bytes") > plain.at("ranks")[0].at("device_bytes"));
  const Json stashed = pipeline_of("--pp 2 --pipeline gpipe --stash input");
  CHECK(stashed.at("ranks")[0].at("device_bytes") < gpipe.at("ranks")[0].at("device_bytes"));
  CHECK(stashed.at("stages")[1].at("forward_seconds") == 0);

  const Json virtual_stages =
      pipeline_of("--pp 2 --pipeline interleaved*2 --pipeline-split 1,1,1,1");
  CHECK(virtual_stages.at("stages").size() == 4);
  CHECK(virtual_stages.at("ranks")[1].at("stages") == Json{1, 3});
  CHECK(virtual_stages.at("bytes_between_stages") == 6 * 8 * message);
  CHECK(virtual_stages.at("bubble").at("equal_stages").get<double>() == Approx(0.5 / 8.5));

  const Json replicas = pipeline_of("--pp 2 --dp 2");
  CHECK(replicas.at("micro_batches") == 4);
  CHECK(replicas.at("ranks")[1].at("bytes_reduced") ==
        4 * replicas.at("stages")[1].at("parameters").get<std::int64_t>());
}

TEST_CASE("a plan writes the schedule, and a run may be told it", "[plan]") {
  const TempDir folder;
  const std::string csv = (folder.path() / "s.csv").string();
  const std::string svg = (folder.path() / "s.svg").string();
  run_well("plan", words(shape + "--pp 2 --schedule-csv " + csv + " --schedule-svg " + svg));
  CHECK(schedule_from_csv(read_file(csv)) == lower(one_forward_one_backward(2, 8)));
  CHECK_THAT(read_file(svg), Contains("<svg") && Contains("1f1b, milliseconds: bubble"));
  const Json json = pipeline_of("--pp 2 --pipeline " + csv);
  CHECK(json.at("bubble").at("equal_stages").get<double>() == Approx(1.0 / 9));
}

TEST_CASE("plans that pipelines do not have are refused", "[plan]") {
  const auto refused = [](const std::string& flags, const std::string& why) {
    const ProgramResult result = run_program("plan", words(shape + flags));
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(why));
  };
  refused("--pp 2 --scaling", "--scaling predicts data parallelism alone");
  refused("--schedule-svg x.svg", "--schedule-svg x.svg: there is no schedule without --pp");
  refused("--schedule-csv x.csv", "--schedule-csv x.csv: there is no schedule");
}

}  // namespace sluice::test::pipeline_plan_test
