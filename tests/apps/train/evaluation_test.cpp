#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/checkpoint/best_model.h"
#include "apps/train/evaluation.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// The loss on fixed tokens: the same whatever computes it.

namespace sluice::test::evaluation_test {
namespace {

struct Runs : TempDir {
  Runs() {
    std::string text;
    for (int i = 0; text.size() < 3000; ++i)
      text += "to be or not to be " + std::to_string(i * i) + ", that is the question\n";
    write_file(path() / "text.txt", text);
  }

  std::string at(const std::string& name) const { return (path() / name).string(); }
  Arguments training(const std::string& output, const std::string& more) const {
    Arguments all = words(
        "--n-layer 1 --n-head 2 --n-embd 16 --context 16 --batch-size 24 "
        "--sample-tokens 0 " +
        more);
    for (const std::string& word :
         {std::string("--data"), at("text.txt"), std::string("--output"), at(output)})
      all.push_back(word);
    return all;
  }
  std::vector<Json> events(const std::string& output, const std::string& kind) const {
    std::vector<Json> found;
    std::istringstream log(read_file(path() / output / "log.jsonl"));
    for (std::string line; std::getline(log, line);)
      if (Json event = Json::parse(line); event.at("event") == kind)
        found.push_back(std::move(event));
    return found;
  }
  Json evaluate(const std::string& model, const std::string& data, const std::string& more) const {
    Arguments all{"--model", at(model), "--data", data, "--json"};
    for (const std::string& word : words(more))
      all.push_back(word);
    return Json::parse(run_well("evaluate", all));
  }
};

}  // namespace

TEST_CASE("tokens of exactly three sequences hold two, for the last one's target is beyond") {
  // Sequence i reads tokens 16 i to 16 i + 16.
  for (const auto& [tokens, sequences] : {std::pair{33, 2}, {48, 2}, {49, 3}, {64, 3}})
    for (const std::int64_t rows : {1, 0}) {
      CAPTURE(tokens, rows);
      const EvaluationBatches batches(tokens, 100, 16, rows);
      CHECK(batches.sequences() == sequences);
      CHECK(batches.tokens() == sequences * 16);
    }
}

TEST_CASE("validation has the same bits for every micro-batch and every form of memory") {
  const Runs runs;
  std::vector<Json> first;
  for (const std::string micro_batch : {"1", "3", "8", "24"}) {
    run_well(
        "train_gpt2",
        runs.training(micro_batch,
                      "--steps 4 --val-every 2 --val-steps 1 --lr 0 --micro-batch " + micro_batch));
    const auto events = runs.events(micro_batch, "val");
    REQUIRE(events.size() == 3);
    CHECK(events[0].at("step") == 0);
    CHECK(events[1].at("step") == 2);
    CHECK(events[2].at("step") == 4);
    std::vector<Json> losses;
    for (const Json& event : events) {
      // 300 tokens are 18 whole sequences, which are one batch; --val-steps asks for 24.
      CHECK(event.at("sequences") == 18);
      CHECK(event.at("tokens") == 18 * 16);
      losses.push_back(event.at("loss"));
    }
    if (first.empty()) first = losses;
    CHECK(losses == first);
  }
  CHECK(first[0] == first[2]);  // a rate of 0 changes nothing
}

TEST_CASE("a run of no steps evaluates the model and says so") {
  const Runs runs;
  const std::string said = run_well("train_gpt2", runs.training("run", "--steps 0"));
  CHECK_THAT(said, Contains("nothing is trained with --steps 0"));
  CHECK_THAT(said, Contains("done         0 of 0 steps, validation") && !Contains("nan"));
  CHECK(runs.events("run", "end").back().at("loss").is_null());
  CHECK(fs::exists(runs.path() / "run" / "model"));
}

TEST_CASE("evaluate gives what validation gave, of every kind of folder") {
  const Runs runs;
  run_well("train_gpt2", runs.training("run", "--steps 6 --val-every 0"));
  const Json end = runs.events("run", "val").back();
  // The last tenth of the text is the validation data.
  const std::string text = read_file(runs.path() / "text.txt");
  write_file(runs.path() / "val.txt", text.substr(text.size() * 9 / 10));
  for (const std::string model : {"run", "run/model", "run/checkpoints/step-00000006"}) {
    CAPTURE(model);
    const Json result = runs.evaluate(model, runs.at("val.txt"), "--max-tokens 288");
    CHECK(result.at("loss") == end.at("loss"));
    CHECK(result.at("tokens") == 288);
    CHECK(result.at("sequences") == 18);
    CHECK(result.at("perplexity").get<double>() ==
          Approx(std::exp(end.at("loss").get<double>())).epsilon(1e-12));
    // Each token is a byte.
    CHECK(result.at("bytes") == 288);
    CHECK(result.at("bits_per_byte").get<double>() ==
          Approx(end.at("loss").get<double>() / std::log(2.0)).epsilon(1e-12));
  }
  const Json all = runs.evaluate("run", runs.at("val.txt"), "");
  CHECK(all.at("tokens") == text.size() - text.size() * 9 / 10 - 1);
  CHECK(all.at("sequences") == 19);
  // A threads' number changes no bit, nor does where sequences of a last one end.
  CHECK(runs.evaluate("run", runs.at("val.txt"), "--threads 1") == all);
  CHECK(runs.events("run", "end").back().at("skipped_updates") == 0);
  // Without a tokenizer nobody knows the bytes that tokens stand for. A checkpoint away from its
  // run has none, and tokens need none.
  write_tokens(runs.path() / "tokens.bin", 200, 256, 1);
  const std::string step = "checkpoints/step-00000006";
  fs::create_directories(runs.path() / "away/checkpoints");
  fs::copy(runs.path() / "run" / step, runs.path() / "away" / step);
  CHECK(runs.evaluate("run/" + step, runs.at("tokens.bin"), "--max-tokens 32").at("bytes") == 32);
  const Json tokens = runs.evaluate("away/" + step, runs.at("tokens.bin"), "--max-tokens 32");
  CHECK(tokens.at("tokens") == 32);
  CHECK(tokens.at("bits_per_byte").is_null());
  CHECK(tokens.at("bytes").is_null());
  // The mean over all tokens is that over both parts, by their tokens.
  const auto loss_of = [&](const std::string& file, const std::string& flags) {
    return runs.evaluate("run", runs.at(file), flags).at("loss").get<double>();
  };
  write_file(runs.path() / "rest.txt", text.substr(text.size() * 9 / 10 + 160));
  const double begin = loss_of("val.txt", "--max-tokens 160");
  const double rest = loss_of("rest.txt", "--max-tokens 3");
  CHECK(begin != all.at("loss"));
  CHECK(std::abs(begin - rest) > 1e-3);
  CHECK(loss_of("val.txt", "--max-tokens 163") ==
        Approx((160 * begin + 3 * rest) / 163).epsilon(1e-6));
}

TEST_CASE("evaluate refuses what it cannot count") {
  const Runs runs;
  run_well("train_gpt2", runs.training("run", "--steps 1 --val-every 0"));
  const auto refused = [&](const Arguments& arguments, const std::string& words_of_it) {
    const ProgramResult result = run_program("evaluate", arguments);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains(words_of_it));
    CHECK(count_lines(result.err) == 1);
  };
  write_file(runs.path() / "one.txt", "x");
  refused({"--model", runs.at("run"), "--data", runs.at("one.txt")}, "a loss needs two");
  refused({"--model", runs.at("run"), "--data", runs.at("none.txt")}, "none.txt");
  refused({"--model", runs.at("run"), "--data", runs.at("text.txt"), "--seq-len", "17"},
          "--seq-len 17 is longer than the model's context of 16; give 16 at most");
  refused({"--model", runs.at("run")}, "--data");
}

TEST_CASE("the model with the lowest validation loss is kept, also by a run that goes on") {
  const Runs runs;
  // The learning rate is far too high after the first steps and ruins the model.
  const std::string shared =
      "--val-every 1 --val-steps 1 --keep-best --lr-schedule constant "
      "--warmup-steps 4 --lr 0.5 --grad-clip 0 ";
  run_well("train_gpt2", runs.training("run", shared + "--steps 3"));
  run_well("train_gpt2", runs.training("run", shared + "--steps 12"));
  Json best;
  for (const Json& event : runs.events("run", "val"))
    if (best.is_null() || event.at("loss") < best.at("loss")) best = event;
  REQUIRE(best.at("step") < 12);
  const Json kept = Json::parse(read_file(runs.path() / "run/best/validation.json"));
  CHECK(kept.at("step") == best.at("step"));
  CHECK(kept.at("loss") == best.at("loss"));
  const std::string text = read_file(runs.path() / "text.txt");
  write_file(runs.path() / "val.txt", text.substr(text.size() * 9 / 10));
  CHECK(runs.evaluate("run/best", runs.at("val.txt"), "--max-tokens 288").at("loss") ==
        best.at("loss"));
}

}  // namespace sluice::test::evaluation_test
