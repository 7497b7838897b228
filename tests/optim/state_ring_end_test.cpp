#include <catch2/catch.hpp>

#include "engine/host_memory.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "optim/offload/state_ring.h"
#include "tests/support/gpu/gpu.h"

// A ring that goes while copies are under way: its memory, on both sides, may be somebody else's
// at once.

namespace sluice::test {

TEST_CASE("what is under way when a ring goes lands nowhere else", "[state_ring_end]") {
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

}  // namespace sluice::test
