#include "kernels/base/runtime.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Budgets and ways to hold memory that make no sense: one line on stderr that names the flag, exit
// code 2, and nothing written.

namespace sluice::test::bad_memory_test {
namespace {

struct Row {
  Arguments changes;
  const char* word;
};

struct Folder : TempDir {
  Folder() { write_tokens(path() / "t.bin", 200, 64); }

  std::string at(const std::string& name) const { return (path() / name).string(); }

  Arguments good(const std::string& program) const {
    Arguments flags{"--n-layer",    "2",  "--n-head",  "2",  "--n-embd",     "16",
                    "--vocab-size", "64", "--context", "16", "--batch-size", "2"};
    if (program == "train_gpt2")
      flags.insert(flags.end(), {"--data", at("t.bin"), "--steps", "1", "--output", at("out")});
    return flags;
  }

  ProgramResult run(const std::string& program, const Arguments& changes) const {
    Arguments arguments = good(program);
    arguments.insert(arguments.end(), changes.begin(), changes.end());
    return RunningProgram(program, arguments).finish(20);
  }

  void refused(const std::string& program, const Row& row) const {
    const ProgramResult result = run(program, row.changes);
    std::string shown = program;
    for (const auto& word : row.changes)
      shown += " '" + word + "'";
    INFO(shown);
    CHECK(result.signal == 0);
    CHECK_FALSE(result.timed_out);
    CHECK(result.exit_code == 2);
    CHECK(result.out == "");
    CHECK(count_lines(result.err) == 1);
    CHECK(result.err.rfind(program + ": error: ", 0) == 0);
    CHECK_THAT(result.err, Contains(row.word));
    CHECK_FALSE(fs::exists(path() / "out"));
    fs::remove_all(path() / "out");
  }
};

const std::vector<std::string> programs{"train_gpt2", "plan"};

}  // namespace

TEST_CASE("what the rows below change is the reason of their refusal", "[bad_memory]") {
  const Folder in;
  const std::vector<Arguments> changes{
      {},
      {"--device", "cpu", "--host-memory", "1.5GiB"},
      {"--device", "cpu", "--placement", "auto:block*1,auto:gelu+ln"},
      {"--device", "cpu", "--precision", "bf16", "--state-layout", "split", "--gradients", "fp32"}};
  for (const auto& program : programs)
    for (const auto& change : changes) {
      const ProgramResult result = in.run(program, change);
      CHECK(result.err == "");
      CHECK(result.exit_code == 0);
      fs::remove_all(in.path() / "out");
    }
}

TEST_CASE("no budget is taken that is not a size", "[bad_memory]") {
  const Folder in;
  for (const auto& program : programs)
    for (const char* value :
         {"11", "-1GiB", "nan", "nanGiB", "inf", "infGiB", "1e99GiB", "11GiBs", "11  GiB", "GiB",
          "11gi", "0", "0GiB", "0x10GiB", "1,5GiB", "18446744073709551616", "1e30", "+"}) {
      in.refused(program, {{"--device", "cpu", "--host-memory", value}, "--host-memory"});
      // There is a GPU to plan for here, or the flag is refused for want of one.
      in.refused(program, {{"--gpu-memory", value}, "--gpu-memory"});
    }
  for (const char* value : {"11", "-1GiB", "nan", "1e99GiB", "11GiBs"})
    in.refused("plan",
               {{"--device-profile", "3090", "--gpu-memory", value, "--host-memory", "16GiB"},
                "--gpu-memory"});
}

TEST_CASE("what a run's precision, device or shape forbids is refused", "[bad_memory]") {
  const Folder in;
  const Row rows[] = {
      {{"--device", "cpu", "--precision", "fp32", "--state-layout", "split"}, "--state-layout"},
      {{"--device", "cpu", "--precision", "fp32", "--gradients", "bf16"}, "--gradients"},
      {{"--device", "cpu", "--precision", "bf16", "--state-layout", "fp24"}, "--state-layout"},
      {{"--device", "cpu", "--gradients", "fp16"}, "--gradients"},
      {{"--device", "cpu", "--optimizer", "sgd", "--precision", "bf16", "--state-layout", "split"},
       "--state-layout"},
      {{"--device", "cpu", "--placement", "auto:block*1"}, "it is about 1 blocks"},
      {{"--device", "cpu", "--placement", "auto:foo"}, "foo"},
      {{"--device", "cpu", "--placement", "auto:block+host*1,auto:none"}, "computes on the CPU"},
      {{"--device", "cpu", "--placement", ""}, "--placement"},
      {{"--device", "cpu", "--placement", "auto:block*9,auto:none"}, "block*9"},
      {{"--device", "cpu", "--offload", "all"}, "--placement"},
      {{"--device", "cpu", "--stream-chunks", "0"}, "--stream-chunks"},
      {{"--device", "cpu", "--stream-chunks", "4096*65"}, "--stream-chunks"},
      // Nothing fits: too many bytes, and what would do.
      {{"--device", "cpu", "--host-memory", "1MiB"}, "would do"},
  };
  for (const auto& program : programs)
    for (const Row& row : rows)
      in.refused(program, row);
  in.refused("train_gpt2", {{"--device", "cpu", "--gpu-memory", "11GiB"}, "--gpu-memory"});
  if (cuda_devices() == 0) return;
  for (const char* precision : {"fp32", "fp16"})
    in.refused("train_gpt2",
               {{"--device", "cuda", "--precision", precision, "--state-layout", "split"},
                "--state-layout"});
  in.refused("train_gpt2",
             {{"--device", "cuda", "--precision", "fp16", "--gradients", "bf16"}, "--gradients"});
  in.refused("train_gpt2", {{"--device", "cuda", "--gpu-memory", "1MiB"}, "would do"});
}

TEST_CASE("a machine that nobody knows is not planned for", "[bad_memory]") {
  const Folder in;
  in.refused("plan", {{"--device-profile", "voodoo2"}, "2080ti"});
  in.refused("plan", {{"--probe", in.at("none.json")}, "none.json"});
  const std::string good =
      R"({"name":"x","gpu":true,"capability":86,"multiprocessors":82,"memory":25769803776,)"
      R"("workspace":33554432,"context":482344960,"process":1610612736,"wide_flops":1e13,)"
      R"("narrow_flops":5e13,"memory_rate":7e11,"to_device_rate":2e10,"to_host_rate":2e10})";
  write_file(in.path() / "good.json", good);
  CHECK(in.run("plan", {"--probe", in.at("good.json")}).exit_code == 0);
  const auto with = [&](const std::string& text) {
    write_file(in.path() / "bad.json", text);
    INFO(text);
    in.refused("plan", {{"--probe", in.at("bad.json")}, "bad.json"});
  };
  with("");
  with("{");
  with("[]");
  with(good.substr(0, good.size() / 2));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    with(text);
  };
  changed("\"memory\":25769803776,", "");
  changed("25769803776", "\"24GiB\"");
  changed("7e11", "-1");
  changed("2e10", "null");
}

}  // namespace sluice::test::bad_memory_test
