#include "apps/config/train_config.h"
#include "tests/support/catch.h"

// Flags become enums, sizes and optionals when the command line is read, and these become the same
// flags again in config.toml.

namespace sluice::test::typed_flags_test {
namespace {

struct Parsed {
  TrainConfig options{};
  CommandLine line{"test", ""};

  explicit Parsed(std::vector<const char*> flags) {
    flags.insert(flags.begin(), "test");
    declare_config(line, options);
    check(line.parse(static_cast<int>(flags.size()), flags.data()), "no --help");
  }
  /// Returns the value of a flag in the --config file of these options; "" where it has none.
  std::string written(const std::string& flag) const {
    const std::string file = "\n" + line.resolved();
    const auto at = file.find("\n" + flag + "=");
    if (at == file.npos) return "";
    const auto begin = at + flag.size() + 2;
    return file.substr(begin, file.find('\n', begin) - begin);
  }
};

struct Case {
  const char *flag, *text, *written;
};

void require_refused(const char* flag, const char* text, const std::string& why) {
  INFO(flag << " " << text);
  CHECK_THROWS_WITH(Parsed({flag, text}), Contains(flag) && Contains(why));
}

}  // namespace

TEST_CASE("a flag is written as it can be read again", "[options]") {
  for (const Case& c : {Case{"--precision", "BF16", "\"bf16\""},
                        {"--precision", "tf32", "\"tf32\""},
                        {"--precision", "auto", ""},
                        {"--optimizer", "adamw8bit", "\"adamw8bit\""},
                        {"--state-layout", "bf16mv", "\"bf16mv\""},
                        {"--state-layout", "auto", ""},
                        {"--micro-batch", "3", "3"},
                        {"--micro-batch", "auto", ""},
                        {"--placement", "auto:block*2,auto:none", "\"auto:block*2,auto:none\""},
                        {"--placement", "auto", "\"auto\""},
                        {"--save-every", "10min", "\"10min\""},
                        {"--save-every", "auto", ""},
                        {"--gpu-memory", "1024MiB", "\"1GiB\""},
                        {"--stash", "input", "\"input\""},
                        {"--stash", "input:1024", "\"input:1KiB\""},
                        {"--stash", "auto", ""},
                        {"--stream-chunks", "3000", "\"3000\""},
                        {"--stream-chunks", "3000*2", "\"3000*2\""},
                        {"--pipeline", "interleaved*2", "\"interleaved*2\""},
                        {"--optimizer", "muon-rms", "\"muon-rms\""},
                        {"--bucket-size", "4KiB", "\"4KiB\""},
                        {"--pipeline", "layer-split", "\"layer-split\""},
                        {"--pipeline", "mine.csv", "\"mine.csv\""},
                        {"--pipeline-split", "3,4,4,1", "\"3,4,4,1\""},
                        {"--pipeline-split", "time", "\"time\""},
                        {"--resume", "auto", ""},
                        {"--resume", "never", "\"never\""},
                        {"--resume", "runs/a", "\"runs/a\""}}) {
    INFO(c.flag << " " << c.text);
    CHECK(Parsed({c.flag, c.text}).written(std::string(c.flag).substr(2)) == c.written);
  }
}

TEST_CASE("auto is no value", "[options]") {
  const TrainConfig usual = Parsed({}).options;
  CHECK_FALSE(usual.machine.precision);
  CHECK_FALSE(usual.batch.micro_batch);
  CHECK_FALSE(usual.parallel.pipeline);
  CHECK(usual.checkpoint.resume.from == ResumeOption::From::newest);
  const TrainConfig o = Parsed({"--precision", "auto", "--micro-batch", "auto", "--save-every",
                                "auto", "--placement", "auto", "--resume", "auto"})
                            .options;
  CHECK_FALSE(o.machine.precision);
  CHECK_FALSE(o.batch.micro_batch);
  CHECK_FALSE(o.checkpoint.save_every);
  CHECK(o.memory.placement.empty());
  CHECK_FALSE(o.parallel.pipeline);
  CHECK(o.checkpoint.resume.from == ResumeOption::From::newest);
}

TEST_CASE("words become their values", "[options]") {
  const TrainConfig o =
      Parsed({"--precision", "fp16", "--device", "cpu", "--optimizer", "sgd", "--pipeline",
              "interleaved", "--resume", "never", "--stash", "input", "--micro-batch", "7"})
          .options;
  CHECK(o.machine.precision == PrecisionName::fp16);
  CHECK(o.machine.device == DeviceKind::cpu);
  CHECK(o.optimizer.kind == OptimizerKind::sgd);
  REQUIRE(o.parallel.pipeline);
  CHECK(o.parallel.pipeline->is(ScheduleName::interleaved));
  CHECK_FALSE(o.parallel.pipeline->is(ScheduleName::one_forward_one_backward));
  CHECK(o.checkpoint.resume.from == ResumeOption::From::nothing);
  CHECK(o.checkpoint.resume.path.empty());
  CHECK(o.parallel.stash == Stash::input);
  CHECK(o.batch.micro_batch == 7);

  const TrainConfig paths = Parsed({"--pipeline", "1f1b.csv", "--resume", "never/"}).options;
  CHECK(paths.parallel.pipeline->file == "1f1b.csv");
  CHECK_FALSE(paths.parallel.pipeline->is(ScheduleName::one_forward_one_backward));
  CHECK(paths.checkpoint.resume.from == ResumeOption::From::path);
  CHECK(paths.checkpoint.resume.path == "never/");
}

TEST_CASE("sizes and counts have their least value", "[options]") {
  CHECK(Parsed({"--gpu-memory", "1MiB"}).options.memory.gpu == 1u << 20);
  CHECK(Parsed({"--stash", "input:1KiB"}).options.parallel.max_stash == 1u << 10);
  CHECK(Parsed({"--bucket-size", "4KiB"}).options.parallel.bucket_size == 4u << 10);
  CHECK(Parsed({"--micro-batch", "1"}).options.batch.micro_batch == 1);
  require_refused("--gpu-memory", "1023KiB", "1MiB");
  require_refused("--stash", "graph:1KiB", "is not one of auto, graph, input and input:1GiB");
  require_refused("--stash", "input:much", "much");
  for (const char* text : {"0", "3000*", "3000*0", "*2", "3000*65", "3000*2*2", ""})
    require_refused("--stream-chunks", text, text);
  for (const char* text : {"interleaved*", "interleaved*0", "interleaved*1025", "interleaved*x"})
    require_refused("--pipeline", text, "number of stages on each rank");
  require_refused("--bucket-size", "4095", "4KiB");
  require_refused("--micro-batch", "0", "at least 1");
  require_refused("--micro-batch", "many", "neither auto nor");
  require_refused("--precision", "bf15", "bf16");
}

}  // namespace sluice::test::typed_flags_test
