// Trains the same model in several processes, each on its part of every batch:
//   mpirun -n 2 data_parallel
// The gradients are summed over the ranks while the backward pass runs. Any number of ranks that
// divides the batch prints the same losses, but for the order of sums.
#include <engine/autograd.h>
#include <engine/rng.h>
#include <models/mlp/mlp.h>
#include <optim/make_optimizer.h>
#include <parallel/comm/world.h>
#include <parallel/data_parallel/data_parallel.h>

#include <cstdio>

namespace {

constexpr std::int64_t batch = 64;

/// Sample i of an endless sequence: a point, and whether it lies inside of a circle.
struct Samples {
  std::vector<double> points;
  std::vector<std::int32_t> classes;

  void add(std::uint64_t i) {
    const std::uint64_t key = sluice::random_key(1, "points");
    const double x = 2 * sluice::uniform(key, 2 * i) - 1,
                 y = 2 * sluice::uniform(key, 2 * i + 1) - 1;
    points.insert(points.end(), {x, y});
    classes.push_back(x * x + y * y < 0.6 ? 1 : 0);
  }
};

void train(const sluice::World& world) {
  using namespace sluice;
  const auto ranks = world.communicator(nullptr, {});
  const DevicePtr device = make_cpu_device();
  Mlp model({.in = 2, .width = 32, .layers = 2, .classes = 2});
  ParameterSpace space(model.parameters(), device, DType::f32, ParameterSpace::Use::training);
  space.initialize(1);  // the same weights on every rank
  const auto adamw = make_adamw(space, {});
  const BucketPlan buckets(space.layout(), {.ranks = world.size()});
  DataParallel parallel(space, *adamw, buckets, *ranks, *ranks, *ranks, {});

  for (int step = 1; step <= 100; ++step) {
    Samples mine;
    for (std::int64_t i = world.rank(); i < batch; i += world.size())
      mine.add(static_cast<std::uint64_t>((step - 1) * batch + i));
    const auto rows = static_cast<std::int64_t>(mine.classes.size());
    space.forget_gradients();
    parallel.gradients.expect();
    // A loss divided by the samples of all ranks, so that the sum of gradients is their mean.
    const Tensor loss =
        model
            .loss(Tensor::from_host(device, {rows, 2}, DType::f32, mine.points),
                  Tensor::from_tokens(device, {rows}, mine.classes), {.scale = 1.0 / batch})
            .loss;
    backward(loss);
    parallel.gradients.finish();
    parallel.optimizer.step(0.01);
    parallel.optimizer.finish();
    double sum = 0;
    for (const double part : ranks->gather_values(loss.item(), "loss"))
      sum += part;
    if (step % 25 == 0 && world.rank() == 0) std::printf("step %d: loss %.4f\n", step, sum);
  }
}

}  // namespace

int main() {
  sluice::World world;
  try {
    train(world);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data_parallel: error: %s\n", error.what());
    world.leave(1);
    return 1;
  }
}
