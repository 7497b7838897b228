#include "optim/offload/weight_ring.h"

#include <cmath>
#include <string>

#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

// Sections take turns in two places of the device. Each reads its weights and writes its gradients
// there and computes nothing else, so a wait that is left out gives another section's numbers.

namespace sluice::test::weight_ring_test {
namespace {

constexpr int sections[] = {1, 2, 3, 4, 5};  // section 0, the embedding, is resident
/// The largest of a place is none of the first two.
constexpr std::int64_t rows[] = {0, 64, 70, 96, 64, 128}, columns = 64;
constexpr std::int64_t elements_of(int section) {
  return rows[section] * columns;
}

struct Resting {
  DevicePtr device;
  std::vector<Tensor> tensors{std::size(sections)};
  ParameterSpace space;
  WeightRing ring;

  explicit Resting(const DevicePtr& on)
      : device(on),
        space(declare(tensors), device, DType::f32, ParameterSpace::Use::training,
              {.residency = std::vector<Residency>(6, Residency::host),
               .host = make_host_memory(device, 1 << 20, 1 << 20)}),
        ring(space) {
    set_weights(0);
  }
  static std::vector<Parameter> declare(std::vector<Tensor>& tensors) {
    std::vector<Parameter> all;
    for (const int s : sections)
      all.push_back({std::to_string(s), {rows[s], columns}, {}, &tensors[all.size()], false, s});
    return all;
  }
  /// A section's weights are all its number and `more`.
  void set_weights(float more) {
    for (const auto& slot : space.slots()) {
      const std::vector<float> values(static_cast<std::size_t>(slot.size),
                                      static_cast<float>(slot.section) + more);
      space.write_weights(slot.offset, std::as_bytes(std::span(values)));
    }
  }
  /// Adds a section's weights to `sum` where they are on the device.
  void add_weights(int s, const Tensor& sum) {
    ring.enter(s);
    ring.prefetch();
    run(Add{.out = sum.view(), .a = sum.view(), .b = space.working().visitor(s)->visiting.view()},
        device->stream());
  }
  void give_gradients(int s, float value) {
    ring.begin_gradients(s);
    run(Fill{.out = space.gradients().visitor(s)->visiting.view(), .value = value},
        device->stream());
    ring.drain_gradients(s);
  }
  /// A section's gradients in host memory.
  Values gradients(int s) const { return space.gradients().visitor(s)->home.to_host(); }
};

/// Calls body(device) on the CPU and on the GPU with eight orders of its streams.
template <class Body>
void for_all_devices(Body&& body) {
  body(make_cpu_device(64 << 20));
  if (!have_gpu()) return;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    body(open_gpu(seed));
  }
}

}  // namespace

TEST_CASE("gradients reach the host before their place has others", "[weight_ring]") {
  for_all_devices([](const DevicePtr& device) {
    Resting it(device);
    for (int step = 0; step < 3; ++step) {
      double squares = 0;
      for (const int s : {5, 4, 3, 2, 1}) {
        const double value = 10 * step + s;
        it.give_gradients(s, static_cast<float>(value));
        squares += static_cast<double>(elements_of(s)) * value * value;
      }
      it.ring.send_scale({});
      CHECK_FALSE(it.ring.wait_for_gradients());
      for (const int s : sections)
        CHECK((it.gradients(s) == Values(static_cast<std::size_t>(elements_of(s)), 10 * step + s)));
      // They were measured while they were on the device.
      it.space.clip_gradients(1);
      CHECK(it.space.gradient_norm() == Approx(std::sqrt(squares)));
    }
    CHECK(it.ring.take_moved().to_host == 3 * (64 + 70 + 96 + 64 + 128) * columns * sizeof(float));
  });
}

TEST_CASE("a section computes with its own weights, forward, back and once more", "[weight_ring]") {
  for_all_devices([](const DevicePtr& device) {
    Resting it(device);
    std::vector<Tensor> sums(1);
    for (const int s : sections)
      sums.push_back(Tensor::zeros(device, {elements_of(s)}, DType::f32));
    const auto compute = [&](int s) { it.add_weights(s, sums[static_cast<std::size_t>(s)]); };
    for (const double more : {100.0, 200.0, 300.0}) {
      for (const int s : {1, 2, 3, 4, 5})
        compute(s);
      for (const int s : {5, 4, 3, 2, 1})
        compute(s);
      // An update in host memory: what is on the device is out of date.
      it.ring.send_scale({});
      it.ring.wait_for_gradients();
      it.set_weights(static_cast<float>(more));
    }
    for (const int s : sections)
      CHECK((sums[static_cast<std::size_t>(s)].to_host() ==
             Values(static_cast<std::size_t>(elements_of(s)), 2 * (3 * s + 300))));
  });
}

}  // namespace sluice::test::weight_ring_test
