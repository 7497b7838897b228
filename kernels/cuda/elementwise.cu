#include "kernels/elementwise.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/map.h"
#include "kernels/cuda/ptx/math.h"

namespace sluice {
namespace {

using namespace cuda;

struct Plus {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Identity {
  __device__ float operator()(float x) const { return x; }
};
struct Times {
  float factor;
  __device__ float operator()(float x) const { return factor * x; }
};
struct Constant {
  float value;
  __device__ float operator()() const { return value; }
};

/// Rounds to bf16, ties away from zero, as working weights are derived from their master.
__global__ void round_half_away(BFloat16* out, const float* in, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i].bits = BFloat16::round_half_away(in[i]);
}

constexpr unsigned row_threads = 256;

template <class T>
__global__ void __launch_bounds__(row_threads)
    add_row(float* matrix, const T* row, std::int64_t rows, std::int64_t columns,
            std::int64_t stride) {
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x;
  if (j >= columns) return;
  const float value = to_float(row[j]);
  for (std::int64_t i = blockIdx.y; i < rows; i += gridDim.y)
    matrix[i * stride + j] += value;
}

struct Relu {
  __device__ float operator()(float x) const { return x < 0 ? 0.0f : x; }  // NaN stays NaN
};
struct ReluGradient {
  __device__ float operator()(float grad, float out) const { return out > 0 ? grad : 0.0f; }
};

// GELU in the form with tanh (Hendrycks and Gimpel, 2016): x * (1 + tanh(u)) / 2 with
// u = sqrt(2 / pi) * (x + 0.044715 * x^3). It is x * sigmoid(2 * u), which needs fewer
// instructions.
constexpr float linear = 2 * 0.797884560802865f;  // 2 * u = linear * x + cubic * x^3
constexpr float cubic = linear * 0.044715f;

__device__ __forceinline__ float gelu_sigmoid(float x) {
  return reciprocal(1.0f + exp2_fast(x * (x * x * (-cubic * log2_e) - linear * log2_e)));
}

struct Gelu {
  __device__ float operator()(float x) const { return x * gelu_sigmoid(x); }
};

struct GeluGradient {
  __device__ float operator()(float grad, float x) const {
    const float s = gelu_sigmoid(x);
    const float slope = 3 * cubic * (x * x) + linear;
    return grad * (s + x * (s - s * s) * slope);
  }
};

constexpr float half_root = 0.70710678f;     // 1 / sqrt(2)
constexpr float density_at_0 = 0.39894228f;  // 1 / sqrt(2 pi)

struct ExactGelu {
  __device__ float operator()(float x) const {
    return 0.5f * x * (1.0f + error_function(x * half_root));
  }
};

/// The derivative is the normal distribution's Phi(x) + x * phi(x).
struct ExactGeluGradient {
  __device__ float operator()(float grad, float x) const {
    const float phi = density_at_0 * exp2_fast(-0.5f * log2_e * x * x);
    return grad * (0.5f * (1.0f + error_function(x * half_root)) + x * phi);
  }
};

}  // namespace

void launch_cuda(const Add& op, Stream stream) {
  dispatch(op.out.dtype, [&]<class T>() {
    map(stream, op.out.size(), Plus{}, op.out.data<T>(), op.a.data<T>(), op.b.data<T>());
  });
}

void launch_cuda(const AddRow& op, Stream stream) {
  constexpr std::int64_t most = 1024;  // more blocks would not be on the GPU at one time
  const std::int64_t rows = op.matrix.dim(0), columns = op.matrix.dim(1);
  dispatch(op.row.dtype, [&]<class T>() {
    launch(add_row<T>,
           {pieces(columns, row_threads), static_cast<unsigned>(rows < most ? rows : most)},
           {row_threads}, 0, stream, op.matrix.data<float>(), op.row.data<T>(), rows, columns,
           op.matrix.stride(0));
  });
}

void launch_cuda(const Cast& op, Stream stream) {
  const std::int64_t count = op.out.size();
  if (op.half_away && op.out.dtype == DType::bf16 && op.in.dtype == DType::f32)
    return launch(round_half_away, {pieces(count, map_threads)}, {map_threads}, 0, stream,
                  op.out.data<BFloat16>(), op.in.data<float>(), count);
  dispatch(op.out.dtype, [&]<class Out>() {
    dispatch(op.in.dtype, [&]<class In>() {
      map(stream, count, Identity{}, op.out.data<Out>(), op.in.data<In>());
    });
  });
}

void launch_cuda(const Scale& op, Stream stream) {
  dispatch(op.out.dtype, [&]<class T>() {
    map(stream, op.out.size(), Times{static_cast<float>(op.factor)}, op.out.data<T>(),
        op.in.data<T>());
  });
}

void launch_cuda(const Fill& op, Stream stream) {
  dispatch(op.out.dtype, [&]<class T>() {
    map(stream, op.out.size(), Constant{static_cast<float>(op.value)}, op.out.data<T>());
  });
}

void launch_cuda(const ReluForward& op, Stream stream) {
  dispatch(op.in.dtype, [&]<class T>() {
    map(stream, op.in.size(), Relu{}, op.out.data<T>(), op.in.data<T>());
  });
}

void launch_cuda(const ReluBackward& op, Stream stream) {
  dispatch(op.out.dtype, [&]<class T>() {
    map(stream, op.out.size(), ReluGradient{}, op.grad_in.data<T>(), op.grad_out.data<T>(),
        op.out.data<T>());
  });
}

void launch_cuda(const GeluForward& op, Stream stream) {
  dispatch(op.in.dtype, [&]<class T>() {
    if (op.exact)
      map(stream, op.in.size(), ExactGelu{}, op.out.data<T>(), op.in.data<T>());
    else
      map(stream, op.in.size(), Gelu{}, op.out.data<T>(), op.in.data<T>());
  });
}

void launch_cuda(const GeluBackward& op, Stream stream) {
  dispatch(op.in.dtype, [&]<class T>() {
    T* const grad_in = op.grad_in.data<T>();
    const T *const grad_out = op.grad_out.data<T>(), *const in = op.in.data<T>();
    if (op.exact)
      map(stream, op.in.size(), ExactGeluGradient{}, grad_in, grad_out, in);
    else
      map(stream, op.in.size(), GeluGradient{}, grad_in, grad_out, in);
  });
}

}  // namespace sluice
