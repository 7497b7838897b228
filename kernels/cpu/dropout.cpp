#include "kernels/dropout.h"

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void launch_cpu(const Dropout& op) {
  using namespace cpu;
  dispatch_floating(op.in.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t samples = op.in.dim(0);
    if (samples == 0) return;
    const std::int64_t size = op.in.size() / samples;
    const A scale = static_cast<A>(op.mask.scale());
    const std::uint32_t threshold = op.mask.threshold();
    constexpr std::int64_t grain = 1 << 12;  // a multiple of the four words of one counter
    const std::int64_t pieces = (size + grain - 1) / grain;
    parallel_for(samples * pieces, [&](std::int64_t task) {
      const std::int64_t sample = task / pieces;
      const std::int64_t begin = task % pieces * grain;
      const std::int64_t end = std::min(begin + grain, size);
      const T* in = op.in.data<T>() + sample * size;
      T* out = op.out.data<T>() + sample * size;
      for (std::int64_t i = begin; i < end; i += 4) {
        const auto words = philox(op.mask.key, static_cast<std::uint64_t>(i / 4),
                                  static_cast<std::uint64_t>(op.mask.first_sample + sample));
        for (std::int64_t j = i; j < std::min(i + 4, end); ++j) {
          const bool keep = words[static_cast<std::size_t>(j - i)] >= threshold;
          store(out[j], keep ? static_cast<A>(in[j]) * scale : A(0));
        }
      }
    });
  });
}

}  // namespace sluice
