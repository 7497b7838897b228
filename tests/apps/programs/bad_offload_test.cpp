#include <fmt/format.h>

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
    for (const std::string place :
         {"offload-state", "speculative", "offload-optimizer", "offload-all"}) {
      const std::string wish = "--placement " + place;
      INFO(program << " " << wish);
      const ProgramResult result = run_program(program, in.flags(wish));
      CHECK(result.exit_code == 2);
      CHECK(count_lines(result.err) == 1);
      CHECK_THAT(result.err, Contains(wish.substr(0, wish.find(' '))));
    }
}

TEST_CASE("a placement of more blocks than the model has is refused", "[bad_offload]") {
  CHECK_THAT(refused("--placement resident*13"), Contains("asks for \"13\" blocks where 12 are"));
}

TEST_CASE("a flag that placements replaced is answered with --placement", "[bad_offload]") {
  for (const std::string flag : {"--offload all", "--resident-blocks 1", "--cpu-blocks 1",
                                 "--host-blocks 1", "--cpu-tables", "--speculative-blocks 1"})
    CHECK_THAT(refused(flag), Contains("did you mean --placement?"));
  CHECK_THAT(refused("--recompute block"), Contains("did you mean --placement auto:block?"));
}

TEST_CASE("the CPU updates nothing by Muon beside a GPU", "[bad_offload]") {
  CHECK_THAT(refused("--placement offload-optimizer --optimizer muon"),
             Contains("--optimizer muon updates on the GPU alone; use offload-state"));
  CHECK_THAT(refused("--placement offload-all --optimizer muon"),
             Contains("--optimizer muon updates on the GPU alone"));
  CHECK_THAT(refused("--state-home . --optimizer muon"), Contains("--optimizer muon"));
  CHECK_THAT(refused("--state-layout int8 --optimizer muon"), Contains("use fp32 or split"));
  // All that it refuses is the CPU's part: state may be copied to the GPU.
  const ProgramResult streams = run_program(
      "plan", words("--model gpt2 --device-profile 3090 --precision bf16 --optimizer muon "
                    "--placement offload-state*10,speculative*2"));
  INFO(streams.err);
  CHECK(streams.exit_code == 0);
  CHECK_THAT(streams.out, Contains("offload-state:none*10,speculative:none"));
}

TEST_CASE("options of Muon are for Muon", "[bad_offload]") {
  for (const std::string flag : {"--muon-lr 0.01", "--muon-momentum 0.9"})
    CHECK_THAT(refused(flag),
               Contains("--muon-") && Contains("is for --optimizer muon, not adamw"));
}

TEST_CASE("weights are offloaded where they are copied twice a step", "[bad_offload]") {
  for (const std::string ranks : {"--pp 2", "--pipeline 1f1b"})
    CHECK_THAT(refused("--placement offload-all " + ranks),
               Contains("leave out --pp and --pipeline"));
  CHECK_THAT(refused("--placement offload-all --dp 2 --zero 1"), Contains("leave out --zero 1"));
  const auto fits = [&](const std::string& flags) {
    return run_program("plan", words("--model gpt2 --device-profile 3090 " + flags));
  };
  const std::string two = "--placement resident*10,offload-all", all = "--placement offload-all";
  CHECK(fits(two + " --zero 1 --host-memory 16GiB").exit_code == 0);  // one rank
  const ProgramResult replicas = fits(all + " --dp 4");
  CHECK(replicas.exit_code == 0);
  CHECK_THAT(replicas.out, Contains("4 ranks of a machine"));
  // Sums that backward passes do not hide take longer.
  const auto stall = [&](const std::string& flags) {
    const auto made =
        nlohmann::json::parse(fits(all + " --dp 2 --link 1GB --batch-size 64 --json " + flags).out);
    return made.at("pipeline").at("weights").at("stall_seconds").get<double>();
  };
  CHECK(stall("--overlap=false") > stall("--overlap=true"));
  CHECK_THAT(refused("--gpu-memory 1300MiB --dp 4 --zero 1"), Contains("without --zero"));
  CHECK_THAT(refused(all + " --optimizer adafactor"), Contains("adafactor"));
  CHECK_THAT(refused("--placement offload-state*6,offload-all"),
             Contains("beside blocks that are offload-all the others are resident"));
  CHECK_THAT(refused("--placement resident,offload-embeddings"),
             Contains("of which blocks are offload-all"));
  const ProgramResult tables = fits(all + ",offload-embeddings");
  CHECK(tables.exit_code == 0);
  CHECK_THAT(tables.out, Contains("the CPU updates them, embeddings and head"));
  for (const std::string& flags :
       {std::string("--pipeline layer-major"), all, std::string("--placement speculative")})
    CHECK_THAT(refused(flags + " --gpus 4"), Contains("--gpus"));
  const ProgramResult saved = fits(two + " --host-memory 16GiB --save background");
  CHECK(saved.exit_code == 0);
  CHECK_THAT(saved.out, Contains("2 of 12 blocks are in host memory"));
  CHECK_THAT(refused("--pipeline layer-major --pp 2"), Contains("leave out --pp 2"));
  CHECK_THAT(refused("--pipeline layer-major --pipeline-split 6,6"),
             Contains("--pipeline-split 6,6"));
}

TEST_CASE("a plan offloads weights where nothing else of its precision fits", "[bad_offload]") {
  const std::string plan = run_well(
      "plan", words("--model gptj-6b --gpu-memory 24GiB --host-memory 80GiB --seq-len 1024 "
                    "--batch-size 64 --device-profile 3090"));
  CHECK_THAT(plan, Contains("--placement resident:none*4,offload-all:none "));
  CHECK_THAT(plan, Contains("24 of 28 blocks are in host memory"));
  CHECK_THAT(plan, Contains("4 micro-batches go through one block after the other"));
  CHECK(count_lines(plan) < 40);
}

TEST_CASE("state is on a disk where the CPU can update it", "[bad_offload]") {
  CHECK_THAT(refused("--state-home . --optimizer adafactor"), Contains("--state-home ."));
  for (const std::string place : {"offload-state", "speculative"})
    CHECK_THAT(refused("--placement " + place + " --state-home ."),
               Contains("use offload-optimizer"));
  CHECK_THAT(refused("--state-home . --gpus 4"), Contains("--state-home is for one way"));
  const ProgramResult plan =
      run_program("plan", words("--model gpt2 --device-profile 3090 --state-home DIR --placement "
                                "resident*3,offload-optimizer"));
  CHECK(plan.exit_code == 0);
  const auto too_small = [](const std::string& more) {
    return run_program("plan",
                       words("--model gpt2 --device cpu --micro-batch 1 --state-layout fp32 "
                             "--seq-len 64 --host-memory 1600MiB " +
                             more))
        .err;
  };
  CHECK_THAT(too_small(""), Contains("with --state-home optimizer state can be on a disk"));
  CHECK_THAT(too_small("--state-home DIR"), !Contains("would do"));
  CHECK_THAT(plan.out, Contains("resident:none*3,offload-optimizer:none") &&
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
        const std::string away = home.empty() ? "offload-state" : "offload-optimizer";
        const std::string placement = resident == 0 ? away
                                      : resident == 12
                                          ? "resident"
                                          : fmt::format("resident*{},{}", resident, away);
        const std::string flags = "--model gpt2 --batch-size 16 --device-profile 3090 --json " +
                                  ranks + home + " --placement " + placement;
        const auto plan = nlohmann::json::parse(run_well("plan", words(flags)));
        CAPTURE(flags);
        const double seconds = plan["run_seconds"].get<double>() / 600;
        CHECK(seconds > 0.01);
        CHECK(seconds < 30);
      }
}

TEST_CASE("the command of a plan gives each flag once", "[bad_offload]") {
  const std::string plan =
      run_well("plan", words("--model gpt2 --device-profile 3090 --state-home DIR --placement "
                             "resident*9,offload-all"));
  const std::string command = plan.substr(plan.find("command "));
  for (const std::string flag : {"--placement", "--state-home"}) {
    const auto at = command.find(flag);
    CAPTURE(command, flag);
    REQUIRE(at != std::string::npos);
    CHECK(command.find(flag, at + 1) == std::string::npos);
  }
}

TEST_CASE("updates begin during the backward pass where that can be", "[bad_offload]") {
  for (const std::string ranks : {"--dp 2", "--pp 2", "--tp 2", "--pipeline 1f1b", "--scaling"})
    CHECK_THAT(refused("--placement speculative " + ranks),
               Contains("complete after the backward pass"));
}

TEST_CASE("Adafactor's state does not leave the GPU", "[bad_offload]") {
  for (const std::string place : {"offload-state", "resident*1,offload-state", "offload-optimizer",
                                  "speculative", "offload-all"})
    CHECK_THAT(
        refused("--placement " + place + " --optimizer adafactor"),
        Contains("--placement " + place + ": ") && Contains("no state can be in host memory"));
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
