#include "swish.h"

#include <kernels/cuda/map.h>

namespace mine {
namespace {

using namespace sluice;

__device__ float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

struct Swish {
  __device__ float operator()(float x) const { return x * sigmoid(x); }
};

struct SwishGradient {
  __device__ float operator()(float grad, float x) const {
    const float s = sigmoid(x);
    return grad * (s + x * s * (1 - s));
  }
};

}  // namespace

void launch_cuda(const SwishForward& op, Stream stream) {
  cuda::dispatch(op.in.dtype, [&]<class T>() {
    cuda::map(stream, op.in.size(), Swish{}, op.out.data<T>(), op.in.data<T>());
  });
}

void launch_cuda(const SwishBackward& op, Stream stream) {
  cuda::dispatch(op.in.dtype, [&]<class T>() {
    cuda::map(stream, op.in.size(), SwishGradient{}, op.grad_in.data<T>(), op.grad_out.data<T>(),
              op.in.data<T>());
  });
}

}  // namespace mine
