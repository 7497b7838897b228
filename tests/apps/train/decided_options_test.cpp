#include "apps/train_gpt2/decided_options.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// A run records its decisions in config.toml, which reproduces the run, and in the first log event.

namespace sluice::test::decided_options_test {
namespace {

struct Work : TempDir {
  Work() {
    write_tokens(path() / "t.bin", 600, 64);
    std::string text;
    for (int i = 0; i < 300; ++i)
      text += "to be or not to be " + std::to_string(i * i) + "\n";
    write_file(path() / "text.txt", text);
  }
  std::string at(const std::string& name) const { return (path() / name).string(); }

  /// A run into `output`; what has to be decided is left to the program.
  std::string train(const std::string& output, const std::string& data,
                    const Arguments& more) const {
    Arguments all = words("--n-layer 2 --n-head 2 --n-embd 16 --context 16 --batch-size 4");
    // Tokens alone have neither a tokenizer nor a part for validation.
    if (data != "t.bin") all.insert(all.end(), {"--sample-tokens", "4", "--val-every", "4"});
    all.insert(all.end(), {"--output", at(output), "--data", at(data)});
    all.insert(all.end(), more.begin(), more.end());
    return run_well("train_gpt2", all);
  }
  std::string again(const std::string& from, const Arguments& more) const {
    Arguments all{"--config", at(from + "/config.toml")};
    all.insert(all.end(), more.begin(), more.end());
    return run_well("train_gpt2", all);
  }
  std::string bytes(const std::string& name) const { return read_file(path() / name); }
  std::string config(const std::string& output) const { return bytes(output + "/config.toml"); }

  /// The bytes of all that was learned.
  std::string learned(const std::string& output) const {
    const auto checkpoint = list_checkpoints(path() / output / "checkpoints").back();
    return read_file(checkpoint / "weights.safetensors") +
           read_file(checkpoint / "optimizer.safetensors") +
           bytes(output + "/model/model.safetensors");
  }
  /// Returns true if two runs learned the same. A CHECK of the values would print bytes.
  bool equal(const std::string& a, const std::string& b) const { return learned(a) == learned(b); }
  std::vector<std::string> losses(const std::string& output) const {
    std::vector<std::string> all;
    for (const Json& event : events(output))
      if (event.at("event") == "train" || event.at("event") == "val")
        all.push_back(event.at("step").dump() + " " + event.at("loss").dump());
    return all;
  }
  std::vector<Json> events(const std::string& output) const {
    std::vector<Json> all;
    std::istringstream lines(bytes(output + "/log.jsonl"));
    for (std::string line; std::getline(lines, line);)
      all.push_back(Json::parse(line));
    return all;
  }
};

std::string value_of(const std::string& config, const std::string& name) {
  std::istringstream lines(config);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(name + "=", 0) == 0) return line.substr(name.size() + 1);
  return "absent";
}

}  // namespace

TEST_CASE("config.toml has what was decided, and makes the same run again") {
  const Work work;
  struct Row {
    const char* data;
    Arguments more;
    std::map<std::string, std::string> decided;
  };
  const std::vector<Row> rows{
      {"text.txt",
       words("--steps 8 --dropout 0.1 --prompt a,b"),
       {{"lr", "0.001"},
        {"min-lr", "0.0001"},
        {"micro-batch", "4"},
        {"seq-len", "16"},
        {"vocab-size", "256"},
        {"placement", "\"resident:none\""},
        {"state-layout", "\"fp32\""},
        {"gradients", "\"fp32\""},
        {"precision", "\"fp32\""},
        {"device", "\"cpu\""},
        {"tokenizer", "\"bytes\""},
        {"prompt", "\"a,b\""},
        {"dp", "1"},
        {"communication", "absent"},
        {"resume", "absent"}}},
      {"text.txt",
       words(
           "--steps 6 --tokenizer chars --precision bf16 --lr 0.0037000000000000002 --min-lr 1e-7 "
           "--optimizer adamw8bit --threads 1"),
       {{"lr", "0.0037"},
        {"min-lr", "1e-07"},
        {"state-layout", "\"int8\""},
        {"precision", "\"bf16\""},
        {"tokenizer", "\"chars\""},
        {"threads", "1"}}},
      {"t.bin",
       words("--steps 6 --vocab-size 64 --pipeline gpipe --micro-batch 1 --placement "
             "auto:block"),
       {{"tokenizer", "absent"}, {"placement", "\"resident:block\""}}}};
  int number = 0;
  for (const auto& [data, more, decided] : rows) {
    const std::string first = "first" + std::to_string(number),
                      second = "second" + std::to_string(number++);
    INFO(first);
    work.train(first, data, more);
    const std::string config = work.config(first);
    CHECK(config.find("auto") == std::string::npos);
    CHECK(value_of(config, "threads") != "0");
    CHECK(value_of(config, "output") == '"' + work.at(first) + '"');
    for (const auto& [name, value] : decided) {
      INFO(name);
      CHECK(value_of(config, name) == value);
    }
    work.again(first, {"--output", work.at(second)});
    CHECK(work.equal(second, first));
    CHECK(work.losses(second) == work.losses(first));
    std::string same = work.config(second);
    same.replace(same.find(work.at(second)), work.at(second).size(), work.at(first));
    CHECK(same == config);
  }
}

TEST_CASE("a run goes on from its own config.toml") {
  const Work work;
  const auto train = [&](const std::string& output, const Arguments& more) {
    Arguments all = words("--lr-schedule constant --threads 1");
    all.insert(all.end(), more.begin(), more.end());
    return work.train(output, "text.txt", all);
  };
  train("whole", words("--steps 9"));
  train("parts", words("--steps 5 --resume never"));
  CHECK_THAT(work.again("parts", words("--steps 9")), Contains("(step 5)"));
  CHECK(work.equal("parts", "whole"));
  // Batches that were left out once are not left out again, and faults are not made again.
  train("skips", words("--steps 2"));
  train("skips", words("--steps 4 --skip-batches 3"));
  const std::string config = work.config("skips");
  CHECK(value_of(config, "skip-batches") == "0");
  CHECK(value_of(config, "inject") == "absent");
  work.again("skips", words("--steps 6"));
  CHECK(work.events("skips").back().at("event") == "end");
  for (const Json& event : work.events("skips"))
    if (event.at("event") == "start" && event.at("step") == 4)
      CHECK(event.at("skipped_batches") == 3);
  // A checkpoint of another run is where this one begins, each time.
  const std::string origin = list_checkpoints(work.path() / "whole" / "checkpoints").back();
  train("branch", {"--steps", "11", "--resume", origin});
  CHECK(value_of(work.config("branch"), "resume") == '"' + origin + '"');
  work.again("branch", {"--output", work.at("branch again")});
  CHECK(work.equal("branch again", "branch"));
}

TEST_CASE("MFU is the share of the peak that is given") {
  const Work work;
  const std::string said = work.train("out", "text.txt", words("--steps 2 --peak-tflops 0.002"));
  CHECK_THAT(said, Contains("100 % MFU is 2 GFLOP/s"));
  const auto events = work.events("out");
  CHECK(events.front().at("matmul_flops") == Approx(2e9));
  CHECK(events.front().at("options").at("peak_tflops") == 0.002);
  int steps = 0;
  for (const Json& event : events) {
    if (event.at("event") != "train") continue;
    ++steps;
    // Six per weight of the blocks and the head, and the products of attention.
    const double operations = 6 * (2 * 12 * 16 * 16 + 256 * 16) + 6 * 2 * 16 * 16;
    CHECK(event.at("mfu").get<double>() ==
          Approx(event.at("tokens_per_second").get<double>() * operations / 2e9));
  }
  CHECK(steps == 2);
}

TEST_CASE("the log begins with the model and every option by name") {
  const Work work;
  work.train("out", "text.txt", words("--steps 2 --log-every 1 --pipeline 1f1b"));
  const Json start = work.events("out").front();
  CHECK(start.at("event") == "start");
  const Json& model = start.at("model");
  CHECK(model.at("n_layer") == 2);
  CHECK(model.at("n_head") == 2);
  CHECK(model.at("n_embd") == 16);
  CHECK(model.at("n_inner") == 64);
  CHECK(model.at("vocab_size") == 256);
  CHECK(model.at("n_positions") == 16);
  CHECK(model.at("parameters") == 256 * 16 + 16 * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16);
  CHECK(start.at("parameters") == model.at("parameters"));
  CHECK(start.at("mesh") == Json{{"dp", 1}, {"pp", 1}, {"tp", 1}});
  const Json& options = start.at("options");
  CHECK(options.at("lr") == 1e-3);
  CHECK(options.at("batch_size") == 4);
  CHECK(options.at("micro_batch") == 1);
  CHECK(options.at("weight_decay") == 0.1);
  CHECK(options.at("log_every") == 1);
  CHECK(options.at("tokenizer") == "bytes");
  CHECK(options.at("quiet") == false);
  CHECK(options.at("val_data").is_null());
  CHECK(start.at("run").at("seed") == 1337);
}

}  // namespace sluice::test::decided_options_test
