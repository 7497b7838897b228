#include "kernels/split_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/cross_entropy_row.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t partials_of_row = 3;

}  // namespace

void launch_cpu(const CrossEntropyPartials& op) {
  dispatch_floating(op.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t columns = op.logits.dim(1);
    const std::int32_t* targets = op.targets.data<std::int32_t>();
    const A* logits = op.logits.data<A>();
    A* partials = op.partials.data<A>();
    parallel_for(op.logits.dim(0), [&](std::int64_t row) {
      const A* x = logits + row * op.logits.stride(0);
      const Normalizer<A> part = normalizer(x, columns);
      const std::int64_t target = targets[row] - op.first;
      A* out = partials + row * partials_of_row;
      out[0] = part.top;
      out[1] = part.sum;
      out[2] = 0 <= target && target < columns ? x[target] : A(0);
    });
  });
}

void launch_cpu(const CrossEntropyOfPartials& op) {
  dispatch_floating(op.gradient ? op.gradient.dtype : op.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t rows = op.logits.dim(0);
    const std::int64_t columns = op.logits.dim(1);
    const std::int32_t* targets = op.targets.data<std::int32_t>();
    const A* logits = op.logits.data<A>();
    const A* partials = op.partials.data<A>();
    const std::int64_t ranks = op.partials.dim(0);
    const std::int64_t stride = rows * partials_of_row;  // distance between ranks
    T* gradient = op.gradient ? op.gradient.data<T>() : nullptr;
    const std::int64_t gradient_stride = op.gradient ? op.gradient.stride(0) : 0;
    A* losses = op.losses.data<A>();
    parallel_for(rows, [&](std::int64_t row) {
      const A* own = partials + row * partials_of_row;
      Normalizer<A> whole{own[0], 0};
      for (std::int64_t rank = 1; rank < ranks; ++rank)
        whole.top = std::max(whole.top, own[rank * stride]);
      A at_target = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        whole.sum += own[rank * stride + 1] * fast_exp(own[rank * stride] - whole.top);
        at_target += own[rank * stride + 2];
      }
      losses[row] = std::log(whole.sum) + whole.top - at_target;
      if (gradient == nullptr) return;
      T* out = gradient + row * gradient_stride;
      write_gradient(out, logits + row * op.logits.stride(0), columns, targets[row] - op.first,
                     whole, static_cast<A>(op.gradient_scale));
      std::fill_n(out + columns, op.padding, T{});
    });
  });
}

}  // namespace sluice
