#include "optim/offload/state_ring.h"

#include "engine/host_memory.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gpu/gpu.h"

// Items of host memory visit the device, are updated there and come home. An update adds one to
// every number, so an event that is missing leaves a number that is not the count of rounds.

namespace sluice::test::state_ring_test {
namespace {

/// The floats of every part of every item.
using Sizes = std::vector<std::vector<std::int64_t>>;

const Sizes one{{640}}, two{{192, 64}, {1024}},
    seven{{64}, {2048, 64}, {320}, {64, 64, 64}, {1024}, {128, 512}, {1984}};

struct RingOf {
  DevicePtr device;
  HostMemory host;
  std::vector<StateRing::Item> items;
  Tensor ones;
  StateRing ring;

  RingOf(const DevicePtr& on, const Sizes& sizes, int places)
      : device(on),
        host(make_host_memory(on, 1 << 20)),
        items(make_items(sizes, host.pinned)),
        ones(Tensor::empty(on, {2048}, DType::f32)),
        ring(on, items, places) {
    run(Fill{.out = ones.view(), .value = 1}, on->stream());
    set(0);
  }

  static std::vector<StateRing::Item> make_items(const Sizes& sizes, const DevicePtr& home) {
    std::vector<StateRing::Item> made;
    for (const auto& parts : sizes) {
      made.emplace_back();
      for (const std::int64_t count : parts)
        made.back().push_back(Tensor::zeros(home, {count}, DType::f32));
    }
    return made;
  }
  /// Returns the initial value of an element in host memory; no two parts are alike.
  static float start(std::size_t item, std::size_t part, std::int64_t element) {
    return static_cast<float>(100'000 * item + 10'000 * part) + static_cast<float>(element);
  }
  static float* floats(const Tensor& part) { return reinterpret_cast<float*>(part.view().address); }
  template <class Body>
  void for_each_number(Body&& body) const {
    for (std::size_t i = 0; i < items.size(); ++i)
      for (std::size_t p = 0; p < items[i].size(); ++p)
        for (std::int64_t e = 0; e < items[i][p].size(); ++e)
          body(floats(items[i][p])[e], start(i, p, e));
  }

  void set(float more) const {
    for_each_number([=](float& number, float first) { number = first + more; });
  }
  void update_next() {
    const StateRing::Item& item = items[taken++ % items.size()];
    const std::vector<std::byte*> parts = ring.take();
    REQUIRE(parts.size() == item.size());
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const View part(parts[p], DType::f32, {item[p].size()});
      run(Add{.out = part, .a = part, .b = ones.slice(0, {item[p].size()}).view()},
          device->stream());
    }
    ring.done();
  }
  void round() {
    ring.rewind();
    while (!ring.finished())
      update_next();
  }
  /// Numbers of the host's memory that are not what they were at first and `more`.
  int wrong(float more) {
    ring.synchronize();
    int count = 0;
    for_each_number([&](float number, float first) { count += number != first + more; });
    return count;
  }

  std::size_t taken = 0;
};

/// Calls action(device) on the CPU and on the GPU with ten orders of its streams.
template <class Action>
void for_all_devices(Action&& action) {
  action(make_cpu_device(64 << 20));
  if (!have_gpu()) return;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    action(open_gpu(seed, 32 << 20));
  }
}

}  // namespace

TEST_CASE("items that visit the device come home with every update", "[state_ring]") {
  for_all_devices([](const DevicePtr& device) {
    for (const Sizes& sizes : {one, two, seven})
      for (int places = 1; places <= 5; ++places) {
        CAPTURE(sizes.size(), places);
        RingOf it(device, sizes, places);
        CHECK(it.ring.items() == sizes.size());
        // Nobody waits between rounds: an item may be fetched again while it is on its way home.
        for (int round = 0; round < 4; ++round)
          it.round();
        CHECK(it.wrong(4) == 0);
        it.round();
        CHECK(it.wrong(5) == 0);
      }
  });
}

TEST_CASE("items may be fetched before a round begins, while the last one drains", "[state_ring]") {
  for_all_devices([](const DevicePtr& device) {
    for (const Sizes& sizes : {one, two, seven})
      for (const int places : {1, 2, 3, 9}) {
        CAPTURE(sizes.size(), places);
        RingOf it(device, sizes, places);
        it.ring.prefetch();
        it.ring.prefetch();
        for (int round = 0; round < 3; ++round) {
          it.round();
          it.ring.rewind();
          it.ring.prefetch();
        }
        // Prefetched and not taken, they are what they were.
        CHECK(it.wrong(3) == 0);
        it.round();
        CHECK(it.wrong(4) == 0);
      }
  });
}

TEST_CASE("a host that writes to its memory says so first", "[state_ring]") {
  for_all_devices([](const DevicePtr& device) {
    for (const int places : {1, 3, 9}) {
      CAPTURE(places);
      RingOf it(device, seven, places);
      it.ring.prefetch();
      it.ring.forget();
      it.ring.synchronize();
      it.set(1000);
      it.round();
      CHECK(it.wrong(1001) == 0);
      // Also between rounds, with items prefetched again after it.
      it.round();
      it.ring.rewind();
      it.ring.prefetch();
      it.ring.forget();
      it.ring.synchronize();
      it.set(2000);
      it.ring.prefetch();
      it.round();
      it.round();
      CHECK(it.wrong(2002) == 0);
      // And where nothing was prefetched.
      it.ring.forget();
      it.ring.synchronize();
      it.set(3000);
      it.round();
      CHECK(it.wrong(3001) == 0);
    }
  });
}

TEST_CASE("a ring counts what it moves", "[state_ring]") {
  for_all_devices([](const DevicePtr& device) {
    for (const Sizes& sizes : {one, two, seven})
      for (const int places : {1, 4}) {
        std::uint64_t bytes = 0;
        for (const auto& parts : sizes)
          for (const std::int64_t floats : parts)
            bytes += 4 * static_cast<std::uint64_t>(floats);
        RingOf it(device, sizes, places);
        CHECK(it.ring.moved().to_device == 0);
        CHECK(it.ring.moved().to_host == 0);
        for (int round = 0; round < 3; ++round) {
          if (round > 0) it.ring.prefetch();
          it.round();
          it.ring.rewind();
          if (round > 1) it.ring.prefetch();  // counts for the round that takes it
          CHECK(it.ring.moved().to_device == bytes);
          CHECK(it.ring.moved().to_host == bytes);
        }
      }
  });
}

TEST_CASE("a ring takes its places from the device and nothing more", "[state_ring]") {
  const DevicePtr device = make_cpu_device(64 << 20);
  const HostMemory host = make_host_memory(device, 1 << 20);
  for (int places = 1; places <= 5; ++places) {
    const std::size_t before = device->arena().in_use();
    StateRing ring(device, RingOf::make_items(seven, host.pinned), places);
    const auto largest = static_cast<std::size_t>((2048 + 64) * 4);
    CHECK(device->arena().in_use() - before ==
          static_cast<std::size_t>(places) * ((largest + 255) / 256 * 256));
    const auto moved = ring.moved();
    CHECK(moved.to_device == 0);
  }
}

TEST_CASE("the memory of a ring's places may be what earlier work still uses", "[state_ring]") {
  for_all_devices([](const DevicePtr& device) {
    const auto elements = std::int64_t{16} << 10;
    Tensor earlier = Tensor::empty(device, {elements}, DType::f32);
    for (int i = 0; i < 4; ++i)
      run(Fill{.out = earlier.view(), .value = 7}, device->stream());
    const auto* const address = earlier.view().address;
    earlier = {};
    RingOf it(device, seven, 3);
    it.ring.prefetch();
    it.round();
    CHECK(it.wrong(1) == 0);
    // Otherwise this test has shown nothing.
    const Tensor next = Tensor::empty(device, {16}, DType::f32);
    CHECK(next.view().address >= address);
    CHECK(next.view().address < address + elements * 4);
  });
}

TEST_CASE("rounds are not torn apart", "[state_ring]") {
  const DevicePtr device = make_cpu_device(64 << 20);
  RingOf it(device, two, 2);
  it.update_next();
  CHECK_FALSE(it.ring.finished());
  CHECK(error_message([&] { it.ring.rewind(); }) != "(no error)");
  CHECK(error_message([&] { it.ring.forget(); }) != "(no error)");
  it.update_next();
  CHECK(it.ring.finished());
  it.ring.rewind();
  CHECK_FALSE(it.ring.finished());
  it.ring.rewind();
  CHECK(error_message([&] { StateRing(device, it.items, 0); }) != "(no error)");
}

TEST_CASE("what is under way when a ring goes lands nowhere else", "[state_ring]") {
  // Its memory, on both sides, may be somebody else's at once.
  if (!have_gpu()) return;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    const DevicePtr device = open_gpu(seed, 32 << 20);
    const HostMemory host = make_host_memory(device, 1 << 20);
    Tensor home = Tensor::zeros(host.pinned, {1024}, DType::f32);
    {
      StateRing ring(device, {{home}}, 1);
      const View visiting(ring.take().front(), DType::f32, {1024});
      run(Fill{.out = visiting, .value = 7}, device->stream());
      ring.done();
    }
    home = {};
    // The same memory again, in use on both sides.
    const Tensor next = Tensor::zeros(host.pinned, {1024}, DType::f32);
    const Tensor mine = Tensor::empty(device, {1024}, DType::f32);
    run(Fill{.out = mine.view(), .value = 3}, device->stream());
    CHECK(mine.to_host() == std::vector<double>(1024, 3.0));
    // The emulated GPU has come past everything when it has released memory.
    device->runtime().release_pinned(device->runtime().reserve_pinned(4096), 4096);
    CHECK(next.to_host() == std::vector<double>(1024, 0.0));
  }
}

}  // namespace sluice::test::state_ring_test
