#include "parallel/data_parallel/gradient_reducer.h"

#include "engine/autograd.h"
#include "engine/ops/linear/linear.h"
#include "tests/parallel/collective_counter.h"
#include "tests/parallel/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::gradient_reducer_test {

TEST_CASE("reductions begin during the backward pass if they may overlap it, else after it",
          "[threads]") {
  const ThreadCount one(1);
  for (const bool overlap : {true, false}) {
    CAPTURE(overlap);
    on_ranks(2, [&](Communicator& ranks) {
      const auto counter = std::make_shared<CollectiveCounter>();
      ranks.set_monitor(counter);
      const auto device = make_cpu_device(16 << 20);
      Tensor first, second;
      ParameterSpace space({{"first", {128, 128}, Initial::normal(1), &first},
                            {"second", {128, 128}, Initial::normal(1), &second}},
                           device, DType::f32, ParameterSpace::Use::training);
      space.initialize(1);
      const BucketPlan buckets(space.layout(), {.ranks = 2, .bucket_bytes = 1});
      expect(buckets.buckets().size() == 2, "each matrix is a bucket");
      GradientReducer reducer(space, buckets, ranks, {.overlap = overlap});
      const Tensor ones = Tensor::from_host(device, {1, 128}, DType::f32, Values(128, 1));
      reducer.expect();
      backward(linear(linear(ones, first), second), ones);
      expect(counter->begun == (overlap ? 2 : 0), "started in backward");
      reducer.finish();
      expect(counter->begun == 2, "started in all");
    });
    SUCCEED();
  }
}

TEST_CASE("a reducer leaves no hook behind") {
  on_ranks(2, [](Communicator& ranks) {
    Tensor matrix;
    const std::vector<Parameter> parameters{{"m", {128, 128}, Initial::normal(1), &matrix}};
    const BucketPlan buckets(SpaceLayout(parameters, {}), {.ranks = 2});
    ParameterSpace space(parameters, make_cpu_device(16 << 20), DType::f32,
                         ParameterSpace::Use::training,
                         {.owned = buckets.owned(ranks.rank()), .shard_gradients = true});
    const auto& gradient = matrix.impl()->gradient;
    {
      const GradientReducer reducer(space, buckets, ranks, {});
      expect(gradient.begin && gradient.ready, "there are hooks");
    }
    expect(!gradient.begin && !gradient.ready, "no hook is left");
  });
  SUCCEED();
}

}  // namespace sluice::test::gradient_reducer_test
