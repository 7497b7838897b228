#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice::cpu {
namespace {

template <class In, class Out>
void multiply(const Gemm& op) {
  using A = Accumulator<In>;
  constexpr std::int64_t panel = 256;  // columns whose sums are meant to stay in cache
  const std::int64_t m = op.out.dim(0);
  const std::int64_t n = op.out.dim(1);
  const std::int64_t k = op.transpose_a ? op.a.dim(0) : op.a.dim(1);
  const In* a = op.a.data<In>();
  const In* b = op.b.data<In>();
  Out* out = op.out.data<Out>();
  const std::int64_t a_row = op.transpose_a ? 1 : op.a.stride(0);
  const std::int64_t a_column = op.transpose_a ? op.a.stride(0) : 1;
  const std::int64_t ldb = op.b.stride(0);
  const std::int64_t panels = (n + panel - 1) / panel;
  parallel_for(m * panels, [&](std::int64_t task) {
    const std::int64_t i = task / panels;
    const std::int64_t begin = task % panels * panel;
    const std::int64_t end = std::min(begin + panel, n);
    A sum[panel] = {};
    if (op.transpose_b) {
      for (std::int64_t j = begin; j < end; ++j) {
        A dot = 0;
        for (std::int64_t l = 0; l < k; ++l)
          dot += static_cast<A>(a[i * a_row + l * a_column]) * static_cast<A>(b[j * ldb + l]);
        sum[j - begin] = dot;
      }
    } else {
      for (std::int64_t l = 0; l < k; ++l) {
        const A left = static_cast<A>(a[i * a_row + l * a_column]);
#pragma omp simd
        for (std::int64_t j = begin; j < end; ++j)
          sum[j - begin] += left * static_cast<A>(b[l * ldb + j]);
      }
    }
    Out* row = out + i * op.out.stride(0);
    dispatch_floating(op.bias ? op.bias.dtype : op.a.dtype, [&]<class Bias>() {
      const Bias* bias = op.bias ? op.bias.data<Bias>() : nullptr;
      for (std::int64_t j = begin; j < end; ++j) {
        A value = sum[j - begin];
        if (bias != nullptr) value += static_cast<A>(static_cast<Accumulator<Bias>>(bias[j]));
        if (op.accumulate) value += static_cast<A>(row[j]);
        store(row[j], static_cast<Accumulator<Out>>(value));
      }
    });
  });
}

}  // namespace

void gemm_plain(const Gemm& op) {
  dispatch_floating(op.a.dtype, [&]<class In>() {
    if (op.out.dtype == op.a.dtype) return multiply<In, In>(op);
    check(op.out.dtype == DType::f32 && op.a.dtype != DType::f64,
          "a matrix product writes its operands' dtype or f32");
    if constexpr (!std::is_same_v<In, double>) multiply<In, float>(op);
  });
}

}  // namespace sluice::cpu
