#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

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

}  // namespace sluice
