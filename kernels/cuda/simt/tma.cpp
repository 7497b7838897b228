#include "kernels/cuda/simt/tma.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/simt/block.h"
#include "kernels/cuda/simt/mbarrier.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice {
namespace simt {
namespace {

constexpr std::size_t row_bytes = 128;

/// State of an mbarrier.
struct Barrier {
  std::uint16_t parity : 1;  ///< of the phase that has not ended
  std::uint16_t arrivals : 15;
  std::uint16_t missing;
  std::int32_t bytes;  ///< expected and not yet there; below 0 if they came earlier

  void end_phase() {
    if (missing > 0 || bytes != 0) return;
    parity ^= 1;
    missing = arrivals;
    BlockRunner::here().recheck();
  }
};
static_assert(sizeof(Barrier) == sizeof(std::uint64_t));

Barrier& at(std::uintptr_t barrier) {
  check(barrier % sizeof(Barrier) == 0, "an mbarrier is not 8-byte aligned");
  return *reinterpret_cast<Barrier*>(barrier);  // NOLINT(performance-no-int-to-ptr)
}

void copy_box(std::uintptr_t to, const TensorMap& map, const std::array<int, 4>& first) {
  std::byte* const place = BlockRunner::here().shared();
  std::size_t offset = to - reinterpret_cast<std::uintptr_t>(place);
  const std::int64_t chunks = map.box[0] * std::int64_t{2} / 16;
  for (unsigned sample = 0; sample < map.box[3]; ++sample)
    for (unsigned row = 0; row < map.box[2]; ++row)
      for (unsigned head = 0; head < map.box[1]; ++head)
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk, offset += 16) {
          const std::int64_t index[4] = {first[0] + chunk * 8, first[1] + std::int64_t{head},
                                         first[2] + std::int64_t{row},
                                         first[3] + std::int64_t{sample}};
          bool inside = true;
          const std::byte* from = map.address;
          for (int d = 0; d < 4; ++d) {
            inside = inside && index[d] >= 0 && index[d] < map.sizes[d];
            from += index[d] * map.strides[d];
          }
          std::byte* const swizzled = place + (offset ^ (offset / row_bytes % 8) * 16);
          // Sizes are multiples of a chunk.
          if (inside)
            std::memcpy(swizzled, from, 16);
          else
            std::memset(swizzled, 0, 16);
        }
}

}  // namespace

void mbarrier_init(std::uintptr_t barrier, unsigned arrivals) {
  at(barrier) = {.parity = 0,
                 .arrivals = static_cast<std::uint16_t>(arrivals & 0x7FFF),
                 .missing = static_cast<std::uint16_t>(arrivals),
                 .bytes = 0};
}

void mbarrier_arrive(std::uintptr_t barrier, unsigned bytes) {
  Barrier& state = at(barrier);
  check(state.missing > 0, "an mbarrier has more arrivals in a phase than it expects");
  state.bytes += static_cast<int>(bytes);
  --state.missing;
  state.end_phase();
}

void mbarrier_complete(std::uintptr_t barrier, unsigned bytes) {
  Barrier& state = at(barrier);
  state.bytes -= static_cast<int>(bytes);
  state.end_phase();
}

void mbarrier_wait(std::uintptr_t barrier, unsigned parity) {
  BlockRunner::here().wait_until([&state = at(barrier), parity] { return state.parity != parity; });
}

void tma_load(std::uintptr_t to, const TensorMap& map, const std::array<int, 4>& first,
              std::uintptr_t barrier) {
  BlockRunner& runner = BlockRunner::here();
  const unsigned bytes = map.box[0] * map.box[1] * map.box[2] * map.box[3] * 2;
  const std::size_t offset = to - reinterpret_cast<std::uintptr_t>(runner.shared());
  check(offset % (8 * row_bytes) == 0, "tma: a box in shared memory is not 1024-byte aligned");
  check(offset + bytes <= runner.shared_bytes(),
        "tma: a box lies beyond the block's shared memory");
  const auto arrive = [to, map, first, barrier, bytes] {
    copy_box(to, map, first);
    mbarrier_complete(barrier, bytes);
  };
  if (runner.draw() % 2 == 0)
    arrive();
  else
    runner.later(arrive);
}

}  // namespace simt

cuda::TensorMap cuda::tensor_map(const MappedTensor& tensor) {
  check(reinterpret_cast<std::uintptr_t>(tensor.address) % 16 == 0,
        "tma: a tensor is not 16-byte aligned");
  simt::TensorMap map{.address = static_cast<const std::byte*>(tensor.address),
                      .sizes = {},
                      .strides = {2},
                      .box = {}};
  for (std::size_t d = 0; d < 4; ++d) {
    map.sizes[d] = tensor.sizes[d];
    map.box[d] = tensor.box[d];
    check(map.box[d] <= 256, "tma: a box is too large");
    if (d == 0) continue;
    map.strides[d] = tensor.strides[d - 1];
    check(map.strides[d] % 16 == 0, "tma: a stride is no multiple of 16 bytes");
  }
  check(map.box[0] * 2 == simt::row_bytes, "tma: the rows of a box have not 128 bytes");
  check(map.sizes[0] % 8 == 0, "tma: the emulation copies 16 bytes at a time");
  return map;
}

}  // namespace sluice
