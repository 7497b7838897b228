#include "engine/arena.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "engine/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

namespace sluice::test::arena_test {
namespace {

TEST_CASE("the arena takes the tightest hole and merges neighbours", "[arena]") {
  constexpr std::size_t unit = Arena::alignment;
  Arena arena(20 * unit);
  std::vector<std::size_t> at;
  for (const std::size_t units : {4u, 1u, 2u, 1u, 3u, 1u})
    at.push_back(arena.allocate(units * unit));
  CHECK(at == std::vector<std::size_t>{0, 4 * unit, 5 * unit, 7 * unit, 8 * unit, 11 * unit});
  CHECK(arena.allocate(1) == 12 * unit);  // rounded up
  CHECK(arena.in_use() == 13 * unit);
  for (const std::size_t hole : {0u, 2u, 4u})
    arena.release(at[hole]);
  CHECK(arena.allocate(2 * unit) == at[2]);      // not the larger holes before and after
  CHECK(arena.allocate(2 * unit + 1) == at[4]);  // three units
  CHECK(arena.peak() == 13 * unit);
  CHECK(arena.high_water() == 13 * unit);
  arena.release(at[1]);  // joins the hole of four before it
  CHECK(arena.allocate(5 * unit) == 0);
  const auto message = error_message([&] { arena.allocate(8 * unit); });
  for (const std::size_t bytes : {8 * unit, 13 * unit, 20 * unit})  // wanted, in use, allowed
    CHECK_THAT(message, Contains(std::to_string(bytes)));
  CHECK(arena.in_use() == 13 * unit);
  for (const std::size_t offset : {std::size_t{0}, at[2], at[3], at[4], at[5], 12 * unit})
    arena.release(offset);
  CHECK(arena.in_use() == 0);
  CHECK(arena.high_water() == 13 * unit);
  CHECK(arena.peak() == 13 * unit);
  CHECK(arena.allocate(20 * unit) == 0);
  CHECK(error_message([&] { arena.release(unit); }) != "(no error)");
}

TEST_CASE("a size that wraps when it is rounded up is refused", "[arena]") {
  Arena arena(1 << 20);
  CHECK(error_message([&] { arena.allocate(SIZE_MAX - 100); }) != "(no error)");
}

TEST_CASE("the arena agrees with a map of bytes under random use", "[arena]") {
  constexpr std::size_t units = 200;
  Arena arena(units * Arena::alignment);
  std::vector<bool> taken(units);
  std::map<std::size_t, std::size_t> blocks;  // in units
  std::size_t used = 0, peak = 0, high = 0, refused = 0;
  std::mt19937 random(1);
  for (int step = 0; step < 20'000; ++step) {
    if (blocks.empty() || random() % 100 < 54) {
      const std::size_t wanted = 1 + random() % 12;
      // The tightest hole, the lowest of equals; what lies above all blocks comes last.
      std::size_t best = 2 * units + 1, best_at = 0;
      for (std::size_t begin = 0, end = 0; begin < units; begin = end + 1) {
        for (end = begin; end < units && !taken[end]; ++end) {
        }
        const std::size_t size = end == units ? 2 * units : end - begin;
        if (end - begin >= wanted && size < best) best = size, best_at = begin;
      }
      if (best > 2 * units) {
        REQUIRE(error_message([&] { arena.allocate(wanted * Arena::alignment); }) != "(no error)");
        ++refused;
        continue;
      }
      const std::size_t at = arena.allocate(wanted * Arena::alignment - random() % 256);
      REQUIRE(at == best_at * Arena::alignment);
      std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(best_at), wanted, true);
      blocks[best_at] = wanted;
      peak = std::max(peak, used += wanted);
      high = std::max(high, best_at + wanted);
    } else {
      const auto block =
          std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random() % blocks.size()));
      arena.release(block->first * Arena::alignment);
      std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(block->first), block->second, false);
      used -= block->second;
      blocks.erase(block);
    }
    REQUIRE(arena.in_use() == used * Arena::alignment);
  }
  CHECK(arena.peak() == peak * Arena::alignment);
  CHECK(arena.high_water() == high * Arena::alignment);
  CHECK(refused > 100);  // otherwise the full arena was never tried
}

TEST_CASE("an arena of exactly the high water repeats what a larger one did", "[arena]") {
  const auto replay = [](Arena& arena) {
    std::vector<std::size_t> offsets, live;
    std::mt19937 random(7);
    for (int step = 0; step < 2000; ++step) {
      if (live.size() < 3 || random() % 100 < 51) {
        offsets.push_back(arena.allocate((1 + random() % 40) * 100));
        live.push_back(offsets.back());
      } else {
        const auto at = live.begin() + static_cast<std::ptrdiff_t>(random() % live.size());
        arena.release(*at);
        live.erase(at);
      }
    }
    return offsets;
  };
  Arena large(std::size_t{1} << 40);
  const auto offsets = replay(large);
  REQUIRE(large.high_water() > large.peak());  // holes matter here
  Arena exact(large.high_water());
  CHECK(replay(exact) == offsets);
  Arena short_by_one(large.high_water() - Arena::alignment);
  CHECK(error_message([&] { replay(short_by_one); }) != "(no error)");
}

TEST_CASE("an arena knows what its peak was made of", "[arena]") {
  Arena arena(1 << 20);
  const auto weights = arena.allocate(1024, MemoryUse::weights);
  const auto head = arena.allocate(4096, MemoryUse::head);
  arena.release(head);
  arena.allocate(512, MemoryUse::activations);
  arena.release(weights);
  const auto by_use = arena.peak_by_use();
  CHECK(by_use[static_cast<std::size_t>(MemoryUse::weights)] == 1024);
  CHECK(by_use[static_cast<std::size_t>(MemoryUse::head)] == 4096);
  CHECK(by_use[static_cast<std::size_t>(MemoryUse::activations)] == 0);
}

TEST_CASE("threads may share a device's arena", "[arena][threads]") {
  const DevicePtr device = make_cpu_device(std::size_t{1} << 26);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::int64_t round = 0; round < 300; ++round) {
          // Every thread fills blocks of its own: a block handed out twice would show.
          const Tensor tensor = Tensor::empty(device, {64 + 64 * (round % 7)}, DType::f32);
          const std::vector<std::byte> bytes(tensor.bytes(), static_cast<std::byte>(thread + 1));
          tensor.copy_bytes_from(bytes);
          std::vector<std::byte> back(tensor.bytes());
          std::this_thread::yield();
          tensor.copy_bytes_to(back);
          if (back != bytes) std::abort();  // Catch's checks are not for several threads
        }
      });
    }
  }
  CHECK(device->arena().in_use() == 0);
  CHECK(device->arena().peak() > 0);
}

}  // namespace
}  // namespace sluice::test::arena_test
