#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/runtime.h"
#include "models/text/byte_tokenizer.h"
#include "tests/engine/safetensors_files.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Whatever is wrong with flags or files: one line on stderr that says so, exit code 2 (or 1 where
// the machine is at fault), and nothing written.

namespace sluice::test::bad_input_test {
namespace {

using Flags = std::map<std::string, std::string>;

/// A folder with one good input of each kind, from which tests make bad ones.
struct Inputs : TempDir {
  Inputs() {
    write_model(path() / "good");
    write_tokens(path() / "t.bin", 200, 64);
    write_file(path() / "text.txt", std::string(3000, 'a') + "\n");
  }

  std::string at(const std::string& name) const { return (path() / name).string(); }

  /// Flags with which the program would do its work.
  Flags good(const std::string& program) const {
    if (program == "train_gpt2")
      return {{"--model", at("good")}, {"--data", at("t.bin")}, {"--output", at("out")},
              {"--steps", "1"},        {"--batch-size", "2"},   {"--threads", "1"},
              {"--sample-tokens", "0"}};
    if (program == "generate")
      return {{"--model", at("good")}, {"--tokens", "1 2"}, {"--max-tokens", "2"}};
    if (program == "probe")
      return {{"--model", at("good")}, {"--tokens", at("t.bin")}, {"--dump", at("out")}};
    if (program == "convert") return {{"--input", at("good")}, {"--output", at("out")}};
    return {{"--input", at("text.txt")}, {"--output", at("out")}};
  }

  /// Runs with the good flags, changed; the value "-" takes a flag away.
  ProgramResult run(const std::string& program, const Flags& changes) const {
    Flags flags = good(program);
    for (const auto& [flag, value] : changes)
      flags[flag] = value;
    Arguments arguments;
    for (const auto& [flag, value] : flags)
      if (value != "-") arguments.insert(arguments.end(), {flag, value});
    // A program that wrongly accepts its input may run for ever.
    return RunningProgram(program, arguments).finish(60);
  }

  void refused(const std::string& program, const Flags& changes, int code,
               const std::string& word) const {
    const ProgramResult result = run(program, changes);
    std::string shown = program;
    for (const auto& [flag, value] : changes)
      shown += " " + flag + " '" + value + "'";
    INFO(shown);
    CHECK(result.signal == 0);
    CHECK_FALSE(result.timed_out);
    CHECK(result.exit_code == code);
    CHECK(count_lines(result.err) == 1);
    CHECK(result.err.rfind(program + ": error: ", 0) == 0);
    CHECK_THAT(result.err, Contains(word));
    CHECK_FALSE(fs::exists(path() / "out"));
    fs::remove_all(path() / "out");
  }

  /// A copy of the good model under this name.
  fs::path copy(const std::string& name) const {
    fs::copy(path() / "good", path() / name, fs::copy_options::recursive);
    return path() / name;
  }

  /// A model whose tensors were changed before they were written.
  void spoil(const std::string& name, const std::function<void(Weights&)>& change) const {
    Weights weights = weights_of(*open_model(path() / "good", make_cpu_device()).space);
    change(weights);
    write_weights(copy(name) / "model.safetensors", weights);
  }

  /// Every program that opens a model refuses this one.
  void model_refused(const std::string& name, const std::string& word) const {
    for (const std::string program : {"train_gpt2", "generate", "probe", "convert"})
      refused(program, {{program == "convert" ? "--input" : "--model", at(name)}}, 2, word);
  }
};

struct Row {
  const char* program;
  Flags changes;
  int code;
  const char* word;
};

const std::vector<std::string> programs{"train_gpt2", "generate", "probe", "convert",
                                        "prepare_data"};

}  // namespace

TEST_CASE("the good inputs are good: what the other tests change is the reason of the refusal") {
  const Inputs in;
  for (const auto& program : programs) {
    INFO(program);
    const ProgramResult result = in.run(program, {});
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
    fs::remove_all(in.path() / "out");
  }
}

TEST_CASE("flags that do not exist are refused with the nearest name") {
  const Inputs in;
  const Row rows[] = {
      {"train_gpt2", {{"--batchsize", "4"}}, 2, "did you mean --batch-size?"},
      {"train_gpt2", {{"--n-layers", "4"}}, 2, "did you mean --n-layer?"},
      {"train_gpt2", {{"--learning-rate", "4"}}, 2, "unknown flag '--learning-rate'"},
      {"train_gpt2", {{"--zzzzzzzzzzzz", "4"}}, 2, "unknown flag '--zzzzzzzzzzzz'"},
      {"generate", {{"--temprature", "1"}}, 2, "did you mean --temperature?"},
      {"probe", {{"--sequence", "4"}}, 2, "unknown flag '--sequence'"},
      {"convert", {{"--dtypes", "f32"}}, 2, "did you mean --dtype?"},
      {"prepare_data", {{"--tokeniser", "bytes"}}, 2, "did you mean --tokenizer?"},
      {"train_gpt2", {{"stray", "-"}, {"word", "word"}}, 2, "unexpected argument 'word'"},
      {"generate", {{"--model", "-"}}, 2, "--model"},
      {"probe", {{"--tokens", "-"}}, 2, "--tokens"},
      {"convert", {{"--output", "-"}}, 2, "--output"},
      {"prepare_data", {{"--input", "-"}}, 2, "--input"},
      {"prepare_data", {{"--output", "-"}}, 2, "--output"},
  };
  for (const auto& [program, changes, code, word] : rows)
    in.refused(program, changes, code, word);
  for (const auto& program : programs) {
    const ProgramResult none = run_program(program, {"--threads"});
    CHECK(none.exit_code == 2);
    CHECK(count_lines(none.err) == 1);
  }
}

TEST_CASE("no numeric flag takes what is no number of its range") {
  const Inputs in;
  const std::map<std::string, std::pair<Arguments, Arguments>> flags{
      {"train_gpt2",
       {{"--n-layer",      "--n-head",        "--n-embd",  "--vocab-size",    "--context",
         "--batch-size",   "--micro-batch",   "--seq-len", "--steps",         "--warmup-steps",
         "--threads",      "--save-every",    "--keep",    "--val-every",     "--val-steps",
         "--sample-every", "--sample-tokens", "--seed",    "--max-bad-steps", "--skip-batches"},
        {"--lr", "--min-lr", "--beta1", "--beta2", "--eps", "--weight-decay", "--grad-clip",
         "--dropout", "--skip-spikes"}}},
      {"generate",
       {{"--max-tokens", "--num", "--top-k", "--seed", "--threads"}, {"--temperature", "--top-p"}}},
      {"probe", {{"--batch", "--seq", "--threads"}, {}}},
      {"convert", {{"--context"}, {}}},
      {"prepare_data", {{}, {"--val-fraction"}}},
  };
  for (const auto& [program, kinds] : flags) {
    for (const auto& flag : kinds.first)
      for (const char* value : {"-1", "nan", "2.5", "99999999999999999999", "x"})
        in.refused(program, {{flag, value}}, 2, flag);
    for (const auto& flag : kinds.second)
      for (const char* value : {"-1", "nan", "inf", "1e999", "x"})
        in.refused(program, {{flag, value}}, 2, flag);
  }
  const Row rows[] = {
      {"train_gpt2", {{"--beta1", "1"}}, 2, "--beta1"},
      {"train_gpt2", {{"--beta2", "1"}}, 2, "--beta2"},
      {"train_gpt2", {{"--dropout", "1"}}, 2, "--dropout"},
      {"train_gpt2", {{"--batch-size", "0"}}, 2, "--batch-size"},
      {"train_gpt2", {{"--micro-batch", "0"}}, 2, "--micro-batch"},
      {"train_gpt2", {{"--keep", "0"}}, 2, "--keep"},
      {"train_gpt2", {{"--lr", ""}}, 2, "--lr"},
      {"train_gpt2", {{"--lr", "1e-3x"}}, 2, "--lr"},
      {"generate", {{"--top-p", "1.5"}}, 2, "--top-p"},
      {"prepare_data", {{"--val-fraction", "1"}}, 2, "--val-fraction"},
  };
  for (const auto& [program, changes, code, word] : rows)
    in.refused(program, changes, code, word);
}

TEST_CASE("what the machine or the model does not have is refused") {
  const Inputs in;
  const Row rows[] = {
      {"train_gpt2", {{"--device", "cpu"}, {"--precision", "tf32"}}, 2, "tf32"},
      {"train_gpt2", {{"--precision", "fp8"}}, 2, "fp8"},
      {"train_gpt2", {{"--device", "tpu"}}, 2, "tpu"},
      {"train_gpt2", {{"--optimizer", "lion"}}, 2, "lion"},
      {"train_gpt2", {{"--lr-schedule", "step"}}, 2, "step"},
      {"train_gpt2", {{"--context", "17"}}, 2, "--context 17"},
      {"train_gpt2", {{"--seq-len", "17"}}, 2, "--seq-len 17"},
      {"train_gpt2", {{"--vocab-size", "65"}}, 2, "--vocab-size 65"},
      {"train_gpt2", {{"--batch-size", "3"}, {"--micro-batch", "2"}}, 2, "--micro-batch 2"},
      {"train_gpt2", {{"--model", "gpt5"}}, 2, "gpt5"},
      {"train_gpt2", {{"--model", "-"}, {"--n-embd", "10"}, {"--n-head", "3"}}, 2, "divisible"},
      {"train_gpt2", {{"--model", "-"}, {"--n-layer", "9223372036854775807"}}, 2, "n_layer"},
      {"train_gpt2", {{"--model", "-"}, {"--n-embd", "4611686018427387904"}}, 2, "n_embd"},
      {"train_gpt2",
       {{"--model", "-"}, {"--n-layer", "1"}, {"--n-embd", "131072"}, {"--seq-len", "8"}},
       2,
       "memory"},
      {"train_gpt2", {{"--resume", "nowhere"}}, 2, "nowhere"},
      {"generate", {{"--device", "cpu"}, {"--precision", "tf32"}}, 2, "tf32"},
      {"generate", {{"--tokens", "1 64"}}, 2, "64"},
      {"generate", {{"--tokens", "1 -2"}}, 2, "-2"},
      {"generate", {{"--tokens", "1 two"}}, 2, "two"},
      {"generate", {{"--tokens", "99999999999999999999"}}, 2, "99999999999999999999"},
      {"generate", {{"--tokens", " "}}, 2, "no token id"},
      {"generate", {{"--prompt", "a"}}, 2, "not both"},
      {"generate", {{"--prompt", "a"}, {"--tokens", "-"}}, 2, "tokenizer"},
      {"probe", {{"--seq", "17"}}, 2, "17"},
      {"probe", {{"--batch", "99"}}, 2, "--batch 99"},
      {"probe", {{"--batch", "1048576"}, {"--seq", "16"}}, 2, "--batch"},
      {"probe", {{"--precision", "fp8"}}, 2, "fp8"},
      {"convert", {{"--context", "17"}}, 2, "--context 17"},
      {"convert", {{"--dtype", "f64"}}, 2, "f64"},
      {"convert", {{"--output", in.at("good")}}, 2, "--output"},
      {"prepare_data", {{"--encode-only", in.at("x.bin")}}, 2, "--encode-only"},
      {"prepare_data", {{"--tokenizer", "gpt2"}}, 2, "--tokenizer-dir"},
      {"prepare_data", {{"--tokenizer", "words"}}, 2, "words"},
  };
  for (const auto& [program, changes, code, word] : rows)
    in.refused(program, changes, code, word);
  if (cuda_devices() == 0) {
    for (const char* program : {"train_gpt2", "generate", "probe"})
      in.refused(program, {{"--device", "cuda"}}, 2, "--device cuda");
  }
}

TEST_CASE("files that are absent or of the wrong kind are refused by name") {
  const Inputs in;
  write_file(in.path() / "odd.bin", std::string(201, 'a'));
  write_file(in.path() / "empty.bin", "");
  write_file(in.path() / "empty.txt", "");
  write_file(in.path() / "short.txt", "too short");
  write_tokens(in.path() / "short.bin", 32, 64);
  auto ids = read_file(in.path() / "t.bin");
  ids[398] = 64;  // the last id is now the first that the vocabulary lacks
  write_file(in.path() / "high.bin", ids);
  fs::create_directory(in.path() / "bare");
  const std::string below = in.at("t.bin") + "/out";
  const Row rows[] = {
      {"train_gpt2", {{"--data", in.at("none.bin")}}, 2, "none.bin"},
      {"train_gpt2", {{"--data", in.at("odd.bin")}}, 2, "odd.bin"},
      {"train_gpt2", {{"--data", in.at("empty.bin")}}, 2, "empty.bin"},
      {"train_gpt2", {{"--data", in.at("high.bin")}}, 2, "64"},
      {"train_gpt2", {{"--data", in.at("short.bin")}}, 2, "needs 33"},
      {"train_gpt2", {{"--data", in.at("bare")}}, 2, "train.bin"},
      {"train_gpt2", {{"--model", "-"}, {"--data", "/dev/null"}}, 2, "/dev/null"},
      {"train_gpt2", {{"--model", "-"}, {"--data", in.at("short.txt")}}, 2, "short.txt"},
      {"train_gpt2", {{"--model", "-"}, {"--data", in.at("empty.txt")}}, 2, "empty.txt"},
      {"train_gpt2", {{"--val-data", in.at("none.bin")}}, 2, "none.bin"},
      {"train_gpt2", {{"--val-data", in.at("high.bin")}}, 2, "high.bin"},
      {"train_gpt2", {{"--val-data", in.at("empty.bin")}}, 2, "empty.bin"},
      {"train_gpt2", {{"--model", in.at("bare")}}, 2, "config.json"},
      {"train_gpt2", {{"--output", below}}, 2, below.c_str()},
      {"generate", {{"--model", in.at("none")}}, 2, "none"},
      {"generate", {{"--tokens", "-"}, {"--prompt", "@" + in.at("none.txt")}}, 2, "tokenizer"},
      {"probe", {{"--model", in.at("none")}}, 2, "none"},
      {"probe", {{"--tokens", in.at("none.bin")}}, 2, "none.bin"},
      {"probe", {{"--tokens", in.at("odd.bin")}}, 2, "odd.bin"},
      {"probe", {{"--tokens", in.at("high.bin")}}, 2, "64"},
      {"probe", {{"--dump", below}}, 1, below.c_str()},
      {"convert", {{"--input", in.at("none")}}, 2, "none"},
      {"convert", {{"--output", below}}, 1, below.c_str()},
      {"prepare_data", {{"--input", in.at("none.txt")}}, 2, "none.txt"},
      {"prepare_data", {{"--input", in.at("empty.txt")}}, 2, "empty.txt"},
      {"prepare_data", {{"--input", in.at("bare")}}, 2, "bare"},
      {"prepare_data", {{"--output", below}}, 2, below.c_str()},
      {"prepare_data", {{"--output", "-"}, {"--encode-only", below}}, 1, below.c_str()},
  };
  for (const auto& [program, changes, code, word] : rows)
    in.refused(program, changes, code, word);
}

TEST_CASE("tokenizer files that make no tokenizer are refused") {
  const Inputs in;
  const auto folder = [&](const std::string& name,
                          const std::map<std::string, std::string>& files) {
    fs::create_directory(in.path() / name);
    for (const auto& [file, text] : files)
      write_file(in.path() / name / file, text);
  };
  folder("half", {{"vocab.json", "{\"a\": 0}"}});
  folder("broken", {{"vocab.json", "{\"a\": 0"}, {"merges.txt", "#version: 0.2\n"}});
  folder("holes", {{"vocab.json", "{\"a\": 0, \"b\": 7}"}, {"merges.txt", "#version: 0.2\n"}});
  folder("kinds", {{"bytes.json", "{}"}, {"chars.json", "{}"}});
  folder("none", {});
  for (const std::string name : {"half", "broken", "holes", "kinds", "none"}) {
    in.refused("train_gpt2", {{"--tokenizer-dir", in.at(name)}}, 2, name);
    in.refused("generate", {{"--tokens", "-"}, {"--prompt", "a"}, {"--tokenizer-dir", in.at(name)}},
               2, name);
    in.refused("prepare_data", {{"--tokenizer", "gpt2"}, {"--tokenizer-dir", in.at(name)}}, 2,
               name);
  }
  fs::create_directory(in.path() / "bytes");
  ByteTokenizer().save(in.path() / "bytes");
  in.refused("train_gpt2", {{"--tokenizer-dir", in.at("bytes")}}, 2, "256 tokens");
  in.refused("train_gpt2", {{"--tokenizer-dir", in.at("bytes")}, {"--tokenizer", "gpt2"}}, 2,
             "kind bytes");
}

TEST_CASE("every program refuses a model whose weights do not fit, by name, and writes nothing") {
  const Inputs in;
  const std::string good = read_file(in.path() / "good" / "model.safetensors");
  const auto with_bytes = [&](const std::string& name, const std::string& bytes,
                              const std::string& word) {
    write_file(in.copy(name) / "model.safetensors", bytes);
    in.model_refused(name, word);
  };
  with_bytes("truncated", good.substr(0, good.size() - 1), "truncated");
  with_bytes("header", good.substr(0, 100), "truncated");
  with_bytes("empty", "", "too few");
  with_bytes("text", "hello, this is no model", "safetensors");
  with_bytes("overlap",
             file_of("{" + entry("a", "F32", "[2]", "[0,8]") + "," +
                         entry("b", "F32", "[2]", "[4,12]") + "}",
                     12),
             "inside the tensor before");

  const double nan = std::numeric_limits<double>::quiet_NaN();
  in.spoil("missing", [](auto& t) { t.erase("h.1.ln_1.bias"); });
  in.spoil("additional", [](auto& t) { t["h.2.ln_1.bias"] = t["h.1.ln_1.bias"]; });
  in.spoil("shape", [](auto& t) { t["h.0.mlp.c_fc.weight"].first = {64, 16}; });
  in.spoil("nan", [&](auto& t) { t["h.0.ln_1.weight"].second[7] = nan; });
  in.spoil("inf", [](auto& t) { t["wpe.weight"].second.back() = -1e300; });
  in.spoil("head", [](auto& t) {
    t["lm_head.weight"] = t["wte.weight"];
    t["lm_head.weight"].second[0] = 9;
  });
  in.model_refused("missing", "h.1.ln_1.bias");
  in.model_refused("additional", "h.2.ln_1.bias");
  in.model_refused("shape", "h.0.mlp.c_fc.weight");
  in.model_refused("nan", "h.0.ln_1.weight");
  in.model_refused("inf", "wpe.weight");
  in.model_refused("head", "lm_head.weight");

  const auto shards = in.copy("shards");
  fs::rename(shards / "model.safetensors", in.path() / "outside.safetensors");
  write_file(shards / "model.safetensors.index.json",
             R"({"weight_map": {"wte.weight": "../outside.safetensors"}})");
  in.model_refused("shards", "outside.safetensors");
}

TEST_CASE("every program refuses a configuration that is none") {
  const Inputs in;
  const auto config = in.copy("model") / "config.json";
  const Json good = Json::parse(read_file(config));
  struct Value {
    const char *key, *text;
  };
  for (const auto& [key, text] : {Value{"n_embd", "2.5"},
                                  {"n_layer", "\"12\""},
                                  {"n_layer", "0"},
                                  {"n_head", "-1"},
                                  {"vocab_size", "1e30"},
                                  {"n_positions", "null"},
                                  {"n_embd", "9223372036854775808"},
                                  {"n_head", "3"},
                                  {"activation_function", "\"silu\""},
                                  {"n_layer", "16777217"}}) {
    Json bad = good;
    bad[key] = Json::parse(text);
    write_file(config, bad.dump());
    INFO(text);
    in.model_refused("model", key);
  }
  write_file(config, "{");
  in.model_refused("model", "config.json");
}

TEST_CASE("a configuration file is refused with the key that is wrong") {
  const Inputs in;
  const auto with = [&](const std::string& text, const std::string& word) {
    write_file(in.path() / "run.toml", text);
    INFO(text);
    in.refused("train_gpt2", {{"--config", in.at("run.toml")}}, 2, word);
  };
  with("batchsize=4\n", "batch-size");
  with("nonsense=4\n", "nonsense");
  with("[section]\nseed=4\n", "section");
  with("seed=minus\n", "seed");
  with("keep=0\n", "keep");
  with("lr=nan\n", "lr");
  in.refused("train_gpt2", {{"--config", in.at("none.toml")}}, 2, "none.toml");
  in.refused("train_gpt2", {{"--config", in.at("good")}}, 2, "good");
}

}  // namespace sluice::test::bad_input_test
