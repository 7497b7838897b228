#include <cmath>
#include <map>

#include "engine/autograd.h"
#include "models/mlp/mlp.h"
#include "optim/make_optimizer.h"
#include "parallel/comm/communicator_group.h"
#include "parallel/comm/transport/thread_transport.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gradcheck.h"

// Ranks that divide an MLP's pairs of matrices and its classes compute what one process computes,
// with one sum over the ranks for each pair and direction.

namespace sluice::test::mlp_tensor_parallel_test {
namespace {

// Seven classes are more for one rank than for another.
constexpr MlpConfig config{.in = 6, .width = 20, .layers = 3, .classes = 7, .hidden = 32};
constexpr std::int64_t rows = 24;
constexpr int steps = 3;
const LinearCrossEntropyOptions mean{.scale = 1.0 / rows, .chunk = 16};

using Counts = std::map<std::string, int>;

/// Passes everything on and counts it.
class CountedGroup final : public TensorGroup {
 public:
  explicit CountedGroup(Communicator& ranks) : group_(ranks, true) {}

  Counts take() { return std::exchange(calls_, {}); }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::function<Tensor()> all_reduce(const Tensor& partial, const Shape& tokens,
                                     std::string_view what) override {
    ++calls_["sum: " + std::string(what)];
    return group_.all_reduce(partial, tokens, what);
  }
  Tensor all_gather(const Tensor& stream, const Shape& tokens, std::string_view what) override {
    return group_.all_gather(stream, tokens, what);
  }
  Tensor gather(const Tensor& mine, std::span<const std::int64_t> counts,
                std::string_view what) override {
    ++calls_["gather: " + std::string(what)];
    return group_.gather(mine, counts, what);
  }

 private:
  CommunicatorGroup group_;
  Counts calls_;
};

using RankBody = std::function<void(const TensorShare&, CountedGroup*)>;

/// Runs `body` as every rank; one rank alone has no group.
void on_ranks(int ranks, const RankBody& body) {
  const ThreadCount one(1);
  if (ranks == 1) return body({}, nullptr);
  run_on_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    const ThreadCount one_each(1);
    const int rank = transport->rank();
    Communicator communicator(std::shared_ptr<Transport>(std::move(transport)), nullptr,
                              {.timeout = 20});
    CountedGroup group(communicator);
    body({.rank = rank, .size = ranks, .group = &group}, &group);
  });
}

std::vector<std::int32_t> targets_of(int step) {
  std::vector<std::int32_t> targets;
  for (const double value : random_values(rows, 100 + static_cast<std::uint64_t>(step), 3.5))
    targets.push_back(static_cast<std::int32_t>(value + 3.5));
  return targets;
}

/// The final values of a rank, and which shard of the whole each one is.
struct Results {
  std::map<std::string, Values> values;
  std::map<std::string, Shard> shards;
  std::vector<std::int32_t> classes;
  Counts forward, backward;  ///< what was exchanged in the last step
};

Results train(const TensorShare& share, CountedGroup* group, DType dtype, bool input_gradient) {
  const DevicePtr device = make_cpu_device(std::size_t{16} << 20);
  Mlp model(config, share);
  ParameterSpace space(model.parameters(), device, dtype, ParameterSpace::Use::training);
  space.initialize(5);
  const auto optimizer = make_sgd(space, {.momentum = 0.9});
  Results results;
  Tensor x;
  for (int step = 0; step < steps; ++step) {
    x = Tensor::from_host(device, {rows, config.in}, dtype,
                          random_values(rows * config.in, static_cast<std::uint64_t>(step)));
    x.set_requires_grad(input_gradient);
    const Tensor targets = Tensor::from_tokens(device, {rows}, targets_of(step));
    space.forget_gradients();
    if (group != nullptr) group->take();
    const auto [loss, losses] = model.loss(x, targets, mean);
    if (group != nullptr) results.forward = group->take();
    backward(loss);
    if (group != nullptr) results.backward = group->take();
    for (const double value : losses.to_host())
      results.values["losses"].push_back(value);
    results.values["losses"].push_back(loss.item());
    optimizer->step(0.1);
  }
  for (const auto& slot : space.slots())
    for (const bool gradient : {false, true}) {
      const std::string name = (gradient ? "gradient of " : "") + slot.name;
      results.values[name] = (gradient ? slot.tensor->grad() : *slot.tensor).to_host();
      results.shards[name] = slot.shard;
    }
  if (input_gradient) results.values["gradient of x"] = x.grad().to_host();
  results.classes = model.classify(x);
  const NoGrad no_grad;
  results.values["logits"] = model.logits(x).to_host();
  if (share.size > 1)
    results.shards["logits"] =
        Shard({rows, config.classes}, 1, space.find("classifier.weight")->shard.kept());
  return results;
}

std::vector<Results> train_on(int ranks, DType dtype, bool input_gradient = true) {
  std::vector<Results> all(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](const TensorShare& share, CountedGroup* group) {
    all[static_cast<std::size_t>(share.rank)] = train(share, group, dtype, input_gradient);
  });
  return all;
}

/// Returns the shard's part of the whole.
Values part_of(const Values& whole, const Shard& shard) {
  if (!shard.divided()) return whole;
  Values part(static_cast<std::size_t>(element_count(shard.shape())));
  shard.for_each_run(0, static_cast<std::int64_t>(part.size()),
                     [&](std::int64_t at, std::int64_t index, std::int64_t count) {
                       std::copy_n(whole.begin() + index, count, part.begin() + at);
                     });
  return part;
}

/// The largest difference of two elements, beside the largest element of all.
double difference(const Values& actual, const Values& expected) {
  if (actual.size() != expected.size()) return INFINITY;
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i])) return INFINITY;
    most = std::max(most, std::abs(actual[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return most / largest;
}

}  // namespace

TEST_CASE("ranks that divide an MLP compute what one process computes", "[tensor][threads]") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Results whole = train_on(1, dtype).front();
    for (const int ranks : {2, 4}) {
      const std::vector<Results> all = train_on(ranks, dtype);
      std::map<std::string, std::size_t> sizes;
      for (const Results& mine : all) {
        REQUIRE(mine.values.size() == whole.values.size());
        for (const auto& [name, values] : mine.values) {
          INFO(name_of(dtype) << ", " << ranks << " ranks: " << name);
          const auto shard = mine.shards.find(name);
          const bool divided = shard != mine.shards.end() && shard->second.divided();
          CHECK(difference(values, divided ? part_of(whole.values.at(name), shard->second)
                                           : whole.values.at(name)) < tolerance_of(dtype));
          if (divided)
            sizes[name] += values.size();
          else  // every rank has a copy of its own
            CHECK(values == all.front().values.at(name));
        }
        CHECK(mine.classes == whole.classes);
      }
      // Nothing is missing and nothing is twice.
      CHECK(sizes.size() == 2 * (3 * config.layers + 1) + 1);
      for (const auto& [name, size] : sizes) {
        INFO(name);
        CHECK(size == whole.values.at(name).size());
      }
    }
  }
}

TEST_CASE("the likeliest class is that of the largest logit", "[tensor]") {
  const Results whole = train_on(1, DType::f64).front();
  const Values& logits = whole.values.at("logits");
  REQUIRE(whole.classes.size() == rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto first = logits.begin() + row * config.classes;
    CHECK(whole.classes[static_cast<std::size_t>(row)] ==
          std::max_element(first, first + config.classes) - first);
  }
}

TEST_CASE("a divided pair costs one sum forward and one backward", "[tensor][threads]") {
  const int layers = config.layers;
  for (const int ranks : {2, 4})
    for (const bool input_gradient : {false, true})
      for (const Results& mine : train_on(ranks, DType::f32, input_gradient)) {
        CAPTURE(ranks, input_gradient);
        // The head has run its backward pass already, and 24 rows are two chunks of its.
        CHECK(mine.forward ==
              Counts{{"sum: output", layers}, {"sum: input gradient", 1}, {"gather: softmax", 2}});
        // Nobody wants the gradient of what the first pair is given, unless asked for.
        CHECK(mine.backward == Counts{{"sum: input gradient", layers - (input_gradient ? 0 : 1)}});
      }
}

TEST_CASE("divided pairs have the gradient of their formula", "[tensor][gradient][threads]") {
  constexpr MlpConfig small{.in = 3, .width = 8, .layers = 2, .classes = 4, .hidden = 8};
  constexpr double step = 1e-5;
  for (const int ranks : {1, 2, 4}) {
    std::vector<double> worst(static_cast<std::size_t>(ranks));
    on_ranks(ranks, [&](const TensorShare& share, CountedGroup*) {
      const DevicePtr device = make_cpu_device(std::size_t{16} << 20);
      Mlp model(small, share);
      ParameterSpace space(model.parameters(), device, DType::f64, ParameterSpace::Use::training);
      space.initialize(5);
      const Tensor x =
          Tensor::from_host(device, {3, small.in}, DType::f64, random_values(3 * small.in, 1));
      const Tensor targets = Tensor::from_tokens(device, {3}, std::vector<std::int32_t>{0, 3, 2});
      const auto loss = [&] { return model.loss(x, targets, {}).loss; };
      backward(loss());
      const NoGrad no_grad;
      double& most = worst[static_cast<std::size_t>(share.rank)];
      for (const auto& slot : space.slots()) {
        const Values gradient = slot.tensor->grad().to_host();
        // All ranks move the same element of the whole, those that have it.
        for (std::int64_t index = 0; index < element_count(slot.whole()); ++index) {
          const std::int64_t place = slot.shard.place(index);
          const bool mine = slot.shard.place(index + 1) > place;
          double weight = 0;
          if (mine)
            space.read_weights(slot.offset + place, std::as_writable_bytes(std::span(&weight, 1)));
          const auto move = [&](double distance) {
            const double moved = weight + distance;
            if (mine) space.write_weights(slot.offset + place, std::as_bytes(std::span(&moved, 1)));
          };
          move(step);
          const double above = loss().item();
          move(-step);
          const double slope = (above - loss().item()) / (2 * step);
          move(0);
          if (mine)
            most = std::max(most, std::abs(gradient[static_cast<std::size_t>(place)] - slope));
        }
      }
    });
    for (const double distance : worst) {
      CAPTURE(ranks);
      CHECK(distance < 1e-8);
    }
  }
}

TEST_CASE("an MLP that cannot be divided says why", "[tensor]") {
  const auto message = [](const MlpConfig& wrong, int ranks) {
    return error_message([&] { Mlp(wrong, {.rank = 0, .size = ranks}); });
  };
  MlpConfig wrong = config;
  CHECK(message(wrong, 4) == "(no error)");
  wrong.hidden = 30;
  CHECK_THAT(message(wrong, 4), Contains("30, which does not divide: 7 * 4 = 28"));
  wrong.hidden = 0;
  CHECK_THAT(message(wrong, 2), Contains("2 ranks") && Contains("hidden width"));
  CHECK(message(wrong, 1) == "(no error)");
  wrong = config;
  CHECK_THAT(message(wrong, 8), Contains("8 ranks: there are 7 classes"));
  wrong.hidden = -1;
  CHECK_THAT(message(wrong, 1), Contains("positive sizes"));
}

}  // namespace sluice::test::mlp_tensor_parallel_test
