#include "kernels/relu.h"

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/map.h"

namespace sluice {
namespace {

using namespace cuda;

struct Relu {
  __device__ float operator()(float x) const { return x < 0 ? 0.0f : x; }  // NaN stays NaN
};
struct ReluGradient {
  __device__ float operator()(float grad, float out) const { return out > 0 ? grad : 0.0f; }
};

}  // namespace

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

}  // namespace sluice
