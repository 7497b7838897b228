#include "engine/offload/host_stack.h"

#include <algorithm>
#include <set>

#include "engine/host_memory.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"

// A pushed tensor comes back unchanged, in reverse order, and is off the device in between.

namespace sluice::test::host_stack_test {
namespace {

constexpr std::int64_t count = 300;
constexpr std::size_t block = 1280;  ///< of the arena: count * 4 bytes, rounded up

struct Stack {
  explicit Stack(DeviceKind kind) : Stack(open_device(kind)) {}
  explicit Stack(const DevicePtr& on)
      : device(on),
        host(make_host_memory(device, std::size_t{1} << 16).pinned),
        stack(device, host) {}

  HostStack::Ticket put(int number) {
    return stack.put(Tensor::from_host(device, {count}, DType::f32, numbers(number)));
  }
  static std::vector<double> numbers(int number) {
    std::vector<double> values(count);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = number * 1000 + static_cast<double>(i);
    return values;
  }
  std::size_t in_use() const { return device->arena().in_use(); }

  DevicePtr device, host;
  HostStack stack;
};

}  // namespace

TEST_CASE("what is put down comes back in reverse", "[host_stack]") {
  for (const DeviceKind kind : device_kinds()) {
    Stack s(kind);
    const std::size_t before = s.in_use();
    for (const int depth : {5, 1, 2, 7, 3}) {
      CAPTURE(static_cast<int>(kind), depth);
      std::vector<HostStack::Ticket> tickets;
      for (int i = 0; i < depth; ++i) {
        tickets.push_back(s.put(depth * 10 + i));
        CHECK(s.in_use() - before == block * static_cast<std::size_t>(std::min(i + 1, 2)));
      }
      for (int i = 0; i < depth; ++i)
        CHECK(bool(s.stack.at_hand(tickets[static_cast<std::size_t>(i)])) == (i >= depth - 2));
      for (int i = depth; i-- > 0;) {
        const Tensor back = s.stack.take(tickets[static_cast<std::size_t>(i)]);
        CHECK(back.to_host() == Stack::numbers(depth * 10 + i));
        CHECK_FALSE(back.requires_grad());
      }
      CHECK(s.in_use() == before);
      const StreamedBytes moved = s.stack.take_moved();
      CHECK(moved.to_host == static_cast<std::uint64_t>(depth - 1) * count * 4);
      CHECK(moved.to_device == static_cast<std::uint64_t>(std::max(0, depth - 2)) * count * 4);
      // Memory on the host is that of the deepest so far, used again.
      CHECK(s.host->arena().in_use() <= 6 * block);
    }
  }
}

TEST_CASE("a graph that is released gives up what it has put down", "[host_stack]") {
  for (const DeviceKind kind : device_kinds()) {
    Stack s(kind);
    const std::size_t before = s.in_use();
    const auto kept = s.put(1);
    {
      const auto second = s.put(2), third = s.put(3), fourth = s.put(4), fifth = s.put(5);
      s.stack.take(fifth);
      s.stack.take(fourth);
      CHECK(bool(s.stack.at_hand(third)));  // on its way
    }
    const auto next = s.put(5);
    CHECK(s.stack.take(next).to_host() == Stack::numbers(5));
    CHECK(s.stack.take(kept).to_host() == Stack::numbers(1));
    CHECK(s.in_use() == before);
  }
}

TEST_CASE("tensors are taken up in one order alone", "[host_stack]") {
  Stack s(DeviceKind::cpu);
  const auto first = s.put(1), second = s.put(2);
  CHECK_THAT(error_message([&] { s.stack.take(first); }), Contains("another order"));
}

TEST_CASE("tensors of other sizes or types take other memory", "[host_stack]") {
  for (const DeviceKind kind : device_kinds()) {
    Stack s(kind);
    for (const auto& [size, dtype] : {std::pair<std::int64_t, DType>{100, DType::f32},
                                      {400, DType::f32},
                                      {50, DType::f32},
                                      {50, DType::bf16},
                                      {50, DType::f32}}) {
      CAPTURE(name_of(kind), size, name_of(dtype));
      std::vector<HostStack::Ticket> tickets;
      for (int i = 0; i < 4; ++i)
        tickets.push_back(s.stack.put(Tensor::from_host(
            s.device, {size}, dtype,
            std::vector<double>(static_cast<std::size_t>(size), static_cast<double>(size + i)))));
      for (int i = 4; i-- > 0;) {
        const Tensor back = s.stack.take(tickets[static_cast<std::size_t>(i)]);
        REQUIRE(back.size() == size);
        REQUIRE(back.dtype() == dtype);
        CHECK(back.item(size - 1) == static_cast<double>(size + i));
      }
    }
  }
}

TEST_CASE("what comes back waits for work that still uses its memory", "[host_stack]") {
  if (!have_gpu()) return;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    Stack s(open_gpu(seed));
    std::vector<HostStack::Ticket> tickets;
    for (int i = 0; i < 4; ++i)
      tickets.push_back(s.put(i));
    const Tensor sum = Tensor::zeros(s.device, {count}, DType::f32);
    std::set<const std::byte*> places;
    {
      std::vector<Tensor> used;
      for (int i = 0; i < 4; ++i) {
        used.push_back(Tensor::empty(s.device, {count}, DType::f32));
        places.insert(used.back().view().address);
        run(Fill{.out = used.back().view(), .value = 5}, s.device->stream());
        run(Add{.out = sum.view(), .a = sum.view(), .b = used.back().view()}, s.device->stream());
      }
    }
    // The third has not left yet. The second takes memory that was given back.
    const Tensor fourth = s.stack.take(tickets[3]), third = s.stack.take(tickets[2]);
    const Tensor second = s.stack.take(tickets[1]);
    CHECK(places.contains(second.view().address));
    CHECK(sum.to_host() == std::vector<double>(count, 20));
    CHECK(second.to_host() == Stack::numbers(1));
  }
}

}  // namespace sluice::test::host_stack_test
