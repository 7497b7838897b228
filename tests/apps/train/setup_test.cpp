#include "apps/train/setup.h"

#include "tests/support/catch.h"
#include "tests/support/training/options.h"

// What flags that nobody gave come to.

namespace sluice::test::setup_test {
namespace {

RateSchedule schedule_of(const std::string& flags) {
  return resolve_shape(parsed("--n-layer 1 --n-head 2 --n-embd 16 --vocab-size 64 --context 16 "
                              "--batch-size 4 --steps 40 --warmup-steps 4 " +
                              flags),
                       false, 0, "test")
      .schedule;
}

}  // namespace

TEST_CASE("a run without --min-lr ends at a tenth of the rate") {
  for (const std::string kind : {"cosine", "linear"}) {
    CAPTURE(kind);
    const auto end = [&](const std::string& flags) {
      return schedule_of("--lr-schedule " + kind + " " + flags).at(40);
    };
    CHECK(end("--lr 0.02") == Approx(0.002).epsilon(1e-12));
    CHECK(end("") == Approx(1e-4).epsilon(1e-12));  // a new model's usual rate is 1e-3
    CHECK(end("--lr 0.02 --min-lr 0.005") == Approx(0.005).epsilon(1e-12));
    CHECK(end("--lr 0.02 --min-lr 0") == Approx(0).margin(1e-12));
  }
}

TEST_CASE("what divides a run over ranks can be taken out of its flags") {
  TrainConfig options = parsed(
      "--dp 2 --pp 4 --tp 2 --zero 1 --pipeline interleaved*2 "
      "--pipeline-split 1,1,1,1 --stash input:3GiB");
  options.parallel.sequence_parallel = true;
  TrainConfig alone = options;
  alone.parallel = options.parallel.alone();
  const TrainConfig usual;
  CHECK(alone.parallel.dp == 1);
  CHECK(alone.parallel.pp == 1);
  CHECK(alone.parallel.tp == 1);
  CHECK(alone.parallel.zero == 0);
  CHECK_FALSE(alone.parallel.pipeline);
  CHECK(alone.parallel.split == usual.parallel.split);
  CHECK(alone.parallel.stash == usual.parallel.stash);
  CHECK(alone.parallel.max_stash == usual.parallel.max_stash);
  CHECK(alone.parallel.sequence_parallel == usual.parallel.sequence_parallel);
  CHECK_FALSE(alone.parallel.pipelined());
}

}  // namespace sluice::test::setup_test
