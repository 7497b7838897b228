#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/cross_entropy_row.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void launch_cpu(const CrossEntropy& op) {
  using namespace cpu;
  dispatch_floating(op.gradient ? op.gradient.dtype : op.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t vocabulary = op.logits.dim(-1);
    const std::int32_t* targets = op.targets.data<std::int32_t>();
    const A* logits = op.logits.data<A>();
    T* gradient = op.gradient ? op.gradient.data<T>() : nullptr;
    const std::int64_t stride = op.gradient ? op.gradient.stride(0) : 0;
    A* losses = op.losses.data<A>();
    parallel_for(op.logits.rows(), [&](std::int64_t row) {
      const A* x = logits + row * op.logits.stride(0);
      const Normalizer<A> whole = normalizer(x, vocabulary);
      losses[row] = std::log(whole.sum) + whole.top - x[targets[row]];
      if (gradient == nullptr) return;
      T* out = gradient + row * stride;
      write_gradient(out, x, vocabulary, targets[row], whole, static_cast<A>(op.gradient_scale));
      std::fill_n(out + vocabulary, op.padding, T{});
    });
  });
}

}  // namespace sluice
