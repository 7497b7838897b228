#include "kernels/embedding.h"

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

using namespace cpu;

void launch_cpu(const EmbeddingForward& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t width = op.out.dim(-1);
    const std::int64_t positions = op.tokens.dim(1);
    const std::int32_t* tokens = op.tokens.data<std::int32_t>();
    parallel_ranges(op.tokens.size(), 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t token = tokens[i] - op.first_row;
        const bool here = 0 <= token && token < op.token_table.dim(0);
        const T* by_token = here ? op.token_table.data<T>() + token * width : nullptr;
        const T* by_position = op.position_table ? op.position_table.data<T>() +
                                                       (op.first_position + i % positions) * width
                                                 : nullptr;
        T* out = op.out.data<T>() + i * width;
#pragma omp simd
        for (std::int64_t j = 0; j < width; ++j)
          store(out[j], (by_token != nullptr ? static_cast<A>(by_token[j]) : A(0)) +
                            (by_position != nullptr ? static_cast<A>(by_position[j]) : A(0)));
      }
    });
  });
}

void launch_cpu(const EmbeddingBackward& op) {
  dispatch_floating(op.grad_out.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t width = op.grad_out.dim(-1);
    const std::int64_t positions = op.tokens.dim(1);
    const std::int32_t* tokens = op.tokens.data<std::int32_t>();
    parallel_ranges(width, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 0; i < op.tokens.size(); ++i) {
        const T* grad = op.grad_out.data<T>() + i * width;
        const std::int64_t token = tokens[i] - op.first_row;
        if (op.grad_token_table && 0 <= token && token < op.grad_token_table.dim(0) &&
            tokens[i] != op.padding) {
          A* row = op.grad_token_table.data<A>() + token * width;
#pragma omp simd
          for (std::int64_t j = begin; j < end; ++j)
            row[j] += static_cast<A>(grad[j]);
        }
        if (op.grad_position_table) {
          A* row = op.grad_position_table.data<A>() + (op.first_position + i % positions) * width;
#pragma omp simd
          for (std::int64_t j = begin; j < end; ++j)
            row[j] += static_cast<A>(grad[j]);
        }
      }
    });
  });
}

}  // namespace sluice
