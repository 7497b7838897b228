// Trains a classifier on data of one's own: a file with a line for each sample, of numbers that
// spaces separate, the last of which is the class (0, 1, ...).
//   mlp points.txt
#include <engine/autograd.h>
#include <models/mlp/mlp.h>
#include <optim/make_optimizer.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

int main(int argc, char** argv) {
  using namespace sluice;
  std::ifstream file(argc > 1 ? argv[1] : "points.txt");
  std::vector<double> inputs;
  std::vector<std::int32_t> classes;
  for (std::string line; std::getline(file, line);) {
    std::istringstream numbers(line);
    for (double number = 0; numbers >> number;)
      inputs.push_back(number);
    classes.push_back(static_cast<std::int32_t>(inputs.back()));
    inputs.pop_back();
  }
  const auto rows = static_cast<std::int64_t>(classes.size());
  if (rows == 0) return std::puts("usage: mlp FILE   (a line for each sample)"), 2;
  const std::int64_t columns = static_cast<std::int64_t>(inputs.size()) / rows;

  const DevicePtr device = make_cpu_device();
  Mlp model({.in = columns, .width = 32, .layers = 2, .classes = 1 + std::ranges::max(classes)});
  ParameterSpace space(model.parameters(), device, DType::f32, ParameterSpace::Use::training);
  space.initialize(1);
  const auto optimizer = make_adamw(space, {.weight_decay = 0});

  const Tensor x = Tensor::from_host(device, {rows, columns}, DType::f32, inputs);
  const Tensor targets = Tensor::from_tokens(device, {rows}, classes);
  for (int step = 1; step <= 200; ++step) {
    space.forget_gradients();
    const Tensor loss = model.loss(x, targets, {.scale = 1.0 / static_cast<double>(rows)}).loss;
    backward(loss);
    optimizer->step(0.01);
    if (step % 50 == 0) std::printf("step %d: loss %.4f\n", step, loss.item());
  }
  const std::vector<std::int32_t> found = model.classify(x);
  std::int64_t right = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    right += found[i] == classes[i] ? 1 : 0;
  std::printf("%ld of %ld right\n", static_cast<long>(right), static_cast<long>(rows));
}
