#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/training.h"

// Wishes about memory that cannot be kept are refused by name, and none is taken for another.

namespace sluice::test::bad_offload_test {
namespace {

struct Folder : TempDir {
  Folder() { write_tokens(path() / "t.bin", 2000, 64); }

  std::string out() const { return (path() / "out").string(); }
  Arguments flags(const std::string& more) const {
    return words(
        "--device cpu --n-layer 2 --n-head 2 --n-embd 64 --vocab-size 64 "
        "--context 512 --seq-len 4 --batch-size 1 --steps 2 --data " +
        (path() / "t.bin").string() + " --output " + out() + " " + more);
  }
};

/// Returns the message of a plan that is refused because of a flag in these wishes.
std::string refused(const std::string& wishes) {
  const ProgramResult result = run_program(
      "plan", words("--model gpt2 --device-profile 3090 --host-memory 16GiB " + wishes));
  CHECK(result.exit_code == 2);
  CHECK(count_lines(result.err) == 1);
  CHECK_THAT(result.err, Contains(wishes.substr(0, wishes.find(' '))));
  return result.err;
}

}  // namespace

TEST_CASE("a run on the CPU that is told to offload is refused by the flag", "[bad_offload]") {
  const Folder in;
  for (const char* program : {"train_gpt2", "plan"})
    for (const std::string wish : {"--offload all", "--resident-blocks 1", "--cpu-blocks 1",
                                   "--speculative-blocks 1", "--speculative-blocks auto"}) {
      INFO(program << " " << wish);
      const ProgramResult result = run_program(program, in.flags(wish));
      CHECK(result.exit_code == 2);
      CHECK(count_lines(result.err) == 1);
      CHECK_THAT(result.err, Contains(wish.substr(0, wish.find(' '))));
    }
}

TEST_CASE("more resident blocks than the model has are refused", "[bad_offload]") {
  const ProgramResult result =
      run_program("plan", {"--model", "gpt2", "--device-profile", "3090", "--host-memory", "16GiB",
                           "--resident-blocks", "13"});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("--resident-blocks"));
}

TEST_CASE("the CPU updates no more blocks than rest in host memory", "[bad_offload]") {
  CHECK_THAT(refused("--cpu-blocks 13"), Contains("12"));
  CHECK_THAT(refused("--cpu-blocks 5 --resident-blocks 8"), Contains("of 12 blocks 4"));
  refused("--cpu-blocks 1 --offload off");
  refused("--cpu-blocks 1 --optimizer adafactor");
}

TEST_CASE("the CPU updates nothing by Muon beside a GPU", "[bad_offload]") {
  CHECK_THAT(refused("--cpu-blocks 1 --optimizer muon"),
             Contains("--cpu-blocks 1: --optimizer muon") && Contains("--offload all"));
  CHECK_THAT(refused("--host-blocks 2 --pipeline layer-major --optimizer muon"),
             Contains("--optimizer muon updates on the GPU alone"));
  CHECK_THAT(refused("--state-home . --optimizer muon"), Contains("--optimizer muon"));
  CHECK_THAT(refused("--state-layout int8 --optimizer muon"), Contains("use fp32 or split"));
  // All that it refuses is the CPU's part: state may visit the GPU.
  const ProgramResult streams = run_program(
      "plan", words("--model gpt2 --device-profile 3090 --precision bf16 --optimizer muon "
                    "--offload all --speculative-blocks 2"));
  INFO(streams.err);
  CHECK(streams.exit_code == 0);
  CHECK_THAT(streams.out, Contains("--resident-blocks 0"));
}

TEST_CASE("options of Muon are for Muon", "[bad_offload]") {
  for (const std::string flag : {"--muon-lr 0.01", "--muon-scale rms", "--muon-momentum 0.9"})
    CHECK_THAT(refused(flag),
               Contains("--muon-") && Contains("is for --optimizer muon, not adamw"));
}

TEST_CASE("weights rest in host memory where they visit the GPU twice a step", "[bad_offload]") {
  CHECK_THAT(refused("--host-blocks 2"), Contains("--pipeline layer-major"));
  CHECK_THAT(refused("--host-blocks 13 --pipeline layer-major"),
             Contains("the model has 12 blocks"));
  CHECK_THAT(refused("--host-blocks 2 --pipeline layer-major --dp 2 --zero 1"),
             Contains("leave out --zero 1"));
  const auto fits = [&](const std::string& flags) {
    return run_program("plan",
                       words("--model gpt2 --device-profile 3090 --pipeline layer-major " + flags));
  };
  CHECK(fits("--host-blocks 2 --zero 1 --host-memory 16GiB").exit_code == 0);  // one rank
  const ProgramResult replicas = fits("--host-blocks 12 --dp 4");
  CHECK(replicas.exit_code == 0);
  CHECK_THAT(replicas.out, Contains("4 ranks of a machine"));
  // Sums that backward passes do not hide take longer.
  const auto stall = [&](const std::string& flags) {
    const auto made = nlohmann::json::parse(
        fits("--host-blocks 12 --dp 2 --link-bandwidth 1GB --batch-size 64 --json " + flags).out);
    return made.at("pipeline").at("weights").at("stall_seconds").get<double>();
  };
  CHECK(stall("--overlap=false") > stall("--overlap=true"));
  CHECK_THAT(refused("--gpu-memory 1300MiB --dp 4 --zero 1"),
             Contains("with --pipeline layer-major and without --zero"));
  CHECK_THAT(refused("--host-blocks 2 --pipeline layer-major --optimizer adafactor"),
             Contains("adafactor"));
  for (const std::string other : {"--offload all", "--resident-blocks 1", "--cpu-blocks 1"})
    CHECK_THAT(refused("--host-blocks 2 --pipeline layer-major " + other), Contains("leave out"));
  CHECK_THAT(refused("--cpu-tables"), Contains("--cpu-tables: a block's weights"));
  CHECK_THAT(refused("--cpu-tables --host-blocks 0 --pipeline layer-major"),
             Contains("no block's state"));
  CHECK_THAT(refused("--cpu-tables --gpus 4"), Contains("--gpus"));
  const ProgramResult tables = fits("--cpu-tables");
  CHECK(tables.exit_code == 0);
  CHECK_THAT(tables.out, Contains("--host-blocks 1 --cpu-tables"));
  CHECK_THAT(tables.out, Contains("the CPU updates them, embeddings and head"));
  for (const std::string text : {"-1", "two", "1.5"})
    CHECK_THAT(refused("--host-blocks " + text), Contains("'" + text + "'"));
  CHECK_THAT(refused("--pipeline layer-major --gpus 4"), Contains("--gpus"));
  CHECK_THAT(refused("--host-blocks 4 --gpus 4"), Contains("--gpus"));
  const ProgramResult saved = run_program(
      "plan", words("--model gpt2 --device-profile 3090 --host-memory 16GiB --pipeline layer-major "
                    "--host-blocks 2 --async-save"));
  CHECK(saved.exit_code == 0);
  CHECK_THAT(saved.out, Contains("2 of 12 blocks rest in host memory"));
  CHECK_THAT(refused("--pipeline layer-major --pp 2"), Contains("leave out --pp 2"));
  CHECK_THAT(refused("--pipeline layer-major --pipeline-split 6,6"),
             Contains("--pipeline-split 6,6"));
}

TEST_CASE("state rests on a disk where the CPU can update it", "[bad_offload]") {
  CHECK_THAT(refused("--state-home . --optimizer adafactor"), Contains("--state-home ."));
  CHECK_THAT(refused("--state-home . --cpu-blocks 3 --resident-blocks 8"),
             Contains("--cpu-blocks is 3 of 4"));
  CHECK_THAT(refused("--state-home . --speculative-blocks 2"), Contains("--state-home"));
  CHECK_THAT(refused("--state-home . --gpus 4"), Contains("--state-home is for one way"));
  const ProgramResult plan = run_program(
      "plan", words("--model gpt2 --device-profile 3090 --state-home DIR --resident-blocks 3"));
  CHECK(plan.exit_code == 0);
  const auto too_small = [](const std::string& more) {
    return run_program("plan",
                       words("--model gpt2 --device cpu --micro-batch 1 --state-layout fp32 "
                             "--seq-len 64 --host-memory 1600MiB " +
                             more))
        .err;
  };
  CHECK_THAT(too_small(""), Contains("with --state-home optimizer state can rest on a disk"));
  CHECK_THAT(too_small("--offload off"), Contains("would do") && !Contains("can rest"));
  CHECK_THAT(too_small("--state-home DIR"), !Contains("would do"));
  CHECK_THAT(plan.out, Contains("--resident-blocks 3") && Contains("--cpu-blocks 9") &&
                           Contains("in DIR, read and written once a step"));
}

TEST_CASE("a folder for state that is not there is found while the state fits", "[bad_offload]") {
  const Folder in;
  const ProgramResult result = run_program("train_gpt2", in.flags("--state-home nowhere"));
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("--state-home: 'nowhere' is not a folder"));
  const std::string there = in.path().string();
  CHECK_THAT(run_well("train_gpt2", in.flags("--state-home " + there)),
             Contains("none: all state fits into memory"));
}

TEST_CASE("a rank's time with state on a disk is predicted for every number of blocks",
          "[bad_offload]") {
  for (const std::string ranks : {"--dp 4 --zero 1", "--dp 2 --zero 2", "--dp 2", "--pp 2"})
    for (int resident = 0; resident <= 12; ++resident)
      for (const std::string home : {"", " --state-home DIR"}) {
        const std::string flags = "--model gpt2 --batch-size 16 --device-profile 3090 --json " +
                                  ranks + home + " --resident-blocks " + std::to_string(resident);
        const auto plan = nlohmann::json::parse(run_well("plan", words(flags)));
        CAPTURE(flags);
        const double seconds = plan["run_seconds"].get<double>() / 600;
        CHECK(seconds > 0.01);
        CHECK(seconds < 30);
      }
}

TEST_CASE("the command of a plan gives each flag once", "[bad_offload]") {
  const std::string plan = run_well(
      "plan", words("--model gpt2 --device-profile 3090 --pipeline layer-major --host-blocks 3 "
                    "--state-home DIR"));
  const std::string command = plan.substr(plan.find("command "));
  for (const std::string flag : {"--host-blocks", "--state-home", "--pipeline"}) {
    const auto at = command.find(flag);
    CAPTURE(command, flag);
    REQUIRE(at != std::string::npos);
    CHECK(command.find(flag, at + 1) == std::string::npos);
  }
}

TEST_CASE("updates begin under the backward pass where that can be, and so many", "[bad_offload]") {
  for (const std::string text : {"-1", "two", "2x", "1.5", "99999999999999999999"})
    CHECK_THAT(refused("--speculative-blocks " + text), Contains("'" + text + "'"));
  refused("--speculative-blocks 1 --offload off");
  refused("--speculative-blocks auto --optimizer adafactor");
  for (const std::string ranks : {"--dp 2", "--pp 2", "--tp 2", "--pipeline 1f1b", "--scaling"})
    refused("--speculative-blocks auto " + ranks);
  refused("--speculative-blocks 2 --gpus 4");
}

TEST_CASE("Adafactor's state does not leave the GPU, whichever flag asks for it", "[bad_offload]") {
  for (const std::string wish :
       {"--offload all", "--resident-blocks 1", "--cpu-blocks 1", "--speculative-blocks 1"}) {
    INFO(wish);
    const std::string said = refused(wish + " --optimizer adafactor");
    CHECK_THAT(said, Contains("no state can be in host memory"));
    // Its value is named where it has one word.
    CHECK((wish != "--offload all" || said.find("--offload all: ") != std::string::npos));
  }
}

TEST_CASE("an empty budget is no size", "[bad_offload]") {
  const Folder in;
  for (const char* flag : {"--gpu-memory", "--host-memory"}) {
    Arguments arguments = in.flags("");
    arguments.insert(arguments.end(), {flag, ""});
    const ProgramResult result = run_program("train_gpt2", arguments);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains(flag));
  }
}

TEST_CASE("without a tokenizer no sample is drawn, and none is planned", "[bad_offload]") {
  const Folder in;
  run_well("train_gpt2", in.flags(""));
  std::istringstream log(read_file(in.path() / "out" / "log.jsonl"));
  nlohmann::json last;
  for (std::string line; std::getline(log, line);)
    last = nlohmann::json::parse(line);
  CHECK(last.at("engine_peak_bytes") == last.at("planned_bytes"));
}

TEST_CASE("a rule that cannot keep a split master says so", "[bad_offload]") {
  const TrainingTask task{.dtype = DType::bf16, .optimizer = "sgd"};
  CHECK(error_message([&] {
          TrainingRun run(task, task.resident(StateLayout::split), make_cpu_device(64 << 20));
          run.train(1);
        }) != "(no error)");
}

}  // namespace sluice::test::bad_offload_test
