#include "kernels/gelu.h"

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/map.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr float root_2_over_pi = 0.797884560802865f;
constexpr float cubic = 0.044715f;

struct Gelu {
  __device__ float operator()(float x) const {
    const float inner = root_2_over_pi * (x + cubic * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
  }
};

struct GeluGradient {
  __device__ float operator()(float grad, float x) const {
    const float t = tanhf(root_2_over_pi * (x + cubic * x * x * x));
    const float slope = root_2_over_pi * (1.0f + 3.0f * cubic * x * x);
    return grad * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
  }
};

}  // namespace

void launch_cuda(const GeluForward& op, Stream stream) {
  dispatch(op.in.dtype, [&]<class T>() {
    map(stream, op.in.size(), Gelu{}, op.out.data<T>(), op.in.data<T>());
  });
}

void launch_cuda(const GeluBackward& op, Stream stream) {
  dispatch(op.in.dtype, [&]<class T>() {
    map(stream, op.in.size(), GeluGradient{}, op.grad_in.data<T>(), op.grad_out.data<T>(),
        op.in.data<T>());
  });
}

}  // namespace sluice
