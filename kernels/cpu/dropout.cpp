#include "kernels/dropout.h"

#include <algorithm>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void launch_cpu(const Dropout& op) {
  using namespace cpu;
  dispatch_floating(op.in.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t count = op.in.size();
    if (count == 0) return;
    const std::int64_t size = op.per_sample > 0 ? op.per_sample : count / op.in.dim(0);
    const std::int64_t first_sample = op.first / size;
    const std::int64_t samples = (op.first + count - 1) / size - first_sample + 1;
    const A scale = static_cast<A>(op.mask.scale());
    const std::uint32_t threshold = op.mask.threshold();
    constexpr std::int64_t grain = 1 << 12;  // a multiple of the four random words per counter
    const std::int64_t pieces = (size + grain - 1) / grain;
    parallel_for(samples * pieces, [&](std::int64_t task) {
      const std::int64_t sample = first_sample + task / pieces;
      const std::int64_t piece = task % pieces * grain;
      // Element j of the sample is element start + j of `out`, which may hold only a part of it.
      const std::int64_t start = sample * size - op.first;
      const std::int64_t begin = std::max(piece, -start);
      const std::int64_t end = std::min({piece + grain, size, count - start});
      if (begin >= end) return;
      const auto words_of = [&](std::int64_t counter) {
        return philox(op.mask.key, static_cast<std::uint64_t>(counter),
                      static_cast<std::uint64_t>(op.mask.first_sample + sample));
      };
      const T* in = op.in.data<T>() + start + begin;
      T* out = op.out.data<T>() + start + begin;
      const auto drop = [&](std::int64_t i, std::uint32_t word) {
        store(out[i], word >= threshold ? static_cast<A>(in[i]) * scale : A(0));
      };
      // The first up to three elements use a counter begun before `begin`; then four per counter.
      const std::int64_t ahead = std::min((begin + 3) / 4 * 4, end) - begin;
      for (std::int64_t i = 0; i < ahead; ++i)
        drop(i, words_of(begin / 4)[static_cast<std::size_t>((begin + i) % 4)]);
      std::int64_t counter = (begin + ahead) / 4;
      for (std::int64_t i = ahead; i < end - begin; i += 4) {
        const auto words = words_of(counter++);
        for (std::int64_t j = i; j < std::min(i + 4, end - begin); ++j)
          drop(j, words[static_cast<std::size_t>(j - i)]);
      }
    });
  });
}

}  // namespace sluice
