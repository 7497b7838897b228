#include "engine/tensor_group.h"

#include "engine/autograd.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/linear/mlp.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

// Tests what divided ops do while a sum is in flight.

namespace sluice::test::tensor_group_test {
namespace {

/// One rank alone, whose tokens can be divided all the same. Sees what has been computed by the
/// time that a sum is waited for.
class WatchedGroup final : public TensorGroup {
 public:
  /// Watches the gradient of this leaf.
  explicit WatchedGroup(Tensor weight) : weight_(std::move(weight)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::function<Tensor()> all_reduce(const Tensor& partial, const Shape&,
                                     std::string_view what) override {
    if (what == "input gradient") begun_with = gradient();
    return [this, partial, what = std::string(what)] {
      if (what == "input gradient") waited_with = gradient();
      return partial;
    };
  }
  Tensor all_gather(const Tensor& stream, const Shape&, std::string_view) override {
    collected_during_sum |= !begun_with.empty() && waited_with.empty();
    return stream;
  }
  Tensor gather(const Tensor& mine, std::span<const std::int64_t>, std::string_view) override {
    return mine;
  }

  Values gradient() const { return weight_.grad() ? weight_.grad().to_host() : Values{NAN}; }

  Values begun_with, waited_with;
  bool collected_during_sum = false;

 private:
  Tensor weight_;
};

Tensor leaf(const DevicePtr& device, const Shape& shape, std::uint64_t seed) {
  Tensor tensor =
      Tensor::from_host(device, shape, DType::f64, random_values(element_count(shape), seed));
  tensor.set_requires_grad(true);
  return tensor;
}

}  // namespace

TEST_CASE("the gradient of a weight is computed while that of the input is added up",
          "[tensor-group]") {
  const DevicePtr cpu = make_cpu_device(std::size_t{1} << 20);
  const Tensor x = leaf(cpu, {1, 6, 8}, 1), weight = leaf(cpu, {8, 12}, 2);
  WatchedGroup group(weight);
  const int op = GENERATE(0, 1, 2);
  CAPTURE(op);
  const Shape tokens{1, 6};
  const auto compute = [&] {
    if (op == 0) return linear(x, weight, {}, {.columns = &group, .tokens = tokens});
    MlpWeights weights{weight, leaf(cpu, {12}, 3), leaf(cpu, {12, 8}, 4), leaf(cpu, {8}, 5)};
    if (op == 2) {
      weights.weight_out = leaf(cpu, {6, 8}, 4);
      weights.activation = MlpActivation::swiglu;
    }
    return mlp(x, weights, {}, {&group, tokens});
  };
  const Tensor out = compute();
  backward(out, Tensor::from_host(cpu, out.shape(), DType::f64, random_values(out.size(), 6)));
  CHECK(group.begun_with != group.gradient());
  CHECK(group.waited_with == group.gradient());
  // A collection at that time would be held up.
  CHECK_FALSE(group.collected_during_sum);
}

}  // namespace sluice::test::tensor_group_test
