// LayerNorm and softmax of cuDNN: the speed of a library with the same memory traffic. On the CPU
// the same cases compute the reference.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "apps/cli/progress.h"
#include "bench/kernels/case.h"
#include "bench/kernels/cudnn_graph.h"
#include "kernels/base/error.h"
#include "kernels/base/run.h"
#include "kernels/base/runtime.h"
#include "kernels/norm.h"

namespace sluice::bench {
namespace {

std::vector<void*> addresses_of(const Operands& views) {
  std::vector<void*> addresses;
  for (const View& view : views)
    addresses.push_back(view.address);
  return addresses;
}

Operand rows(const Extent& e, DType dtype, Role role = Role::input) {
  return {.dtype = dtype, .shape = {e.tokens, e.width}, .role = role};
}
Operand statistic(const Extent& e, DType dtype, Role role) {
  return {.dtype = accumulator_of(dtype), .shape = {e.tokens}, .role = role};
}
/// Parameters and gradients of width `width`: f32 for every dtype, as all engines of cuDNN accept.
Operand line(const Extent& e, DType dtype, Role role = Role::input) {
  return {.dtype = accumulator_of(dtype), .shape = {e.width}, .role = role};
}

/// A plan is made at the first launch, which is not measured, because no stream exists before.
using LazyPlan = std::shared_ptr<std::unique_ptr<CudnnPlan>>;

LazyPlan later() {
  return std::make_shared<std::unique_ptr<CudnnPlan>>();
}

void normalize(const LazyPlan& plan, const NormForward& op, Stream stream) {
  if (stream.device.kind != DeviceKind::cuda) return run(op, stream);
  if (!*plan) *plan = cudnn_layernorm(op.in.shape[0], op.in.shape[1], op.in.dtype, stream);
  (*plan)->launch(addresses_of({op.in, op.weight, op.bias, op.out, op.mean, op.rstd}), stream);
}

Problem layernorm(const Extent& e, DType dtype) {
  Problem problem{
      .dimensions = fmt::format("{}x{}", e.tokens, e.width),
      .operands = {rows(e, dtype, Role::output), statistic(e, dtype, Role::output),
                   statistic(e, dtype, Role::output), rows(e, dtype), line(e, dtype),
                   line(e, dtype)},
      .launch = [plan = later()](const Operands& v, Stream stream) {
        normalize(
            plan,
            {.out = v[0], .mean = v[1], .rstd = v[2], .in = v[3], .weight = v[4], .bias = v[5]},
            stream);
      }};
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

/// Does less than the project's own kernel: it adds no gradient of the residual, and overwrites the
/// parameters' gradients. The statistics are those of the input, as a formula may assume.
Problem layernorm_backward(const Extent& e, DType dtype) {
  Problem problem{
      .dimensions = fmt::format("{}x{}", e.tokens, e.width),
      .operands = {rows(e, dtype, Role::output), line(e, dtype, Role::output),
                   line(e, dtype, Role::output), rows(e, dtype), rows(e, dtype),
                   statistic(e, dtype, Role::derived), statistic(e, dtype, Role::derived),
                   line(e, dtype)},
      .launch =
          [plan = later()](const Operands& v, Stream stream) {
            if (stream.device.kind != DeviceKind::cuda)
              return run(NormBackward{.grad_in = v[0],
                                      .grad_weight = v[1],
                                      .grad_bias = v[2],
                                      .grad_out = v[3],
                                      .normalized_in = v[4],
                                      .mean = v[5],
                                      .rstd = v[6],
                                      .weight = v[7]},
                         stream);
            if (!*plan)
              *plan = cudnn_layernorm_backward(v[4].shape[0], v[4].shape[1], v[4].dtype, stream);
            (*plan)->launch(addresses_of({v[3], v[4], v[7], v[5], v[6], v[0], v[1], v[2]}), stream);
          },
      .prepare =
          [plan = later()](const Operands& v, Stream stream) {
            // grad_in receives the forward output, which is not used.
            normalize(
                plan,
                {.out = v[0], .mean = v[5], .rstd = v[6], .in = v[4], .weight = v[7], .bias = v[7]},
                stream);
          }};
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

/// cuDNN's softmax over the rows of packed matrices, its fastest layout.
class Softmax {
 public:
  explicit Softmax(const View& like) {
    SLUICE_CUDNN(cudnnCreateTensorDescriptor, &matrix_);
    try {
      SLUICE_CUDNN(cudnnSetTensor4dDescriptor, matrix_, CUDNN_TENSOR_NCHW, cudnn_type(like.dtype),
                   static_cast<int>(like.shape[0]), static_cast<int>(like.shape[1]), 1, 1);
    } catch (...) {
      cudnn().cudnnDestroyTensorDescriptor(matrix_);
      throw;
    }
  }
  ~Softmax() { cudnn().cudnnDestroyTensorDescriptor(matrix_); }
  Softmax(const Softmax&) = delete;
  Softmax& operator=(const Softmax&) = delete;

  void forward(const View& out, const View& in, Stream stream) const {
    SLUICE_CUDNN(cudnnSoftmaxForward, cudnn_handle(stream), CUDNN_SOFTMAX_ACCURATE,
                 CUDNN_SOFTMAX_MODE_INSTANCE, &one, matrix_, in.address, &zero, matrix_,
                 out.address);
  }
  void backward(const View& grad_in, const View& grad_out, const View& out, Stream stream) const {
    SLUICE_CUDNN(cudnnSoftmaxBackward, cudnn_handle(stream), CUDNN_SOFTMAX_ACCURATE,
                 CUDNN_SOFTMAX_MODE_INSTANCE, &one, matrix_, out.address, matrix_, grad_out.address,
                 &zero, matrix_, grad_in.address);
  }

 private:
  static constexpr float one = 1, zero = 0;
  cudnnTensorDescriptor_t matrix_ = nullptr;
};

using LazySoftmax = std::shared_ptr<std::unique_ptr<Softmax>>;

const Softmax& softmax_of(const LazySoftmax& softmax, const View& like) {
  if (!*softmax) *softmax = std::make_unique<Softmax>(like);
  return **softmax;
}

// The reference implementation, in f64.

const double* row_of(const View& view, std::int64_t row) {
  return reinterpret_cast<const double*>(view.address) + row * view.strides[0];
}
double* row_to(const View& view, std::int64_t row) {
  return reinterpret_cast<double*>(view.address) + row * view.strides[0];
}

void softmax_forward_reference(const View& out, const View& in) {
  for (std::int64_t i = 0; i < in.shape[0]; ++i) {
    const double* from = row_of(in, i);
    double* to = row_to(out, i);
    double largest = from[0], sum = 0;
    for (std::int64_t j = 1; j < in.shape[1]; ++j)
      largest = std::max(largest, from[j]);
    for (std::int64_t j = 0; j < in.shape[1]; ++j) {
      to[j] = std::exp(from[j] - largest);
      sum += to[j];
    }
    for (std::int64_t j = 0; j < in.shape[1]; ++j)
      to[j] /= sum;
  }
}

void softmax_backward_reference(const View& grad_in, const View& grad_out, const View& out) {
  for (std::int64_t i = 0; i < out.shape[0]; ++i) {
    const double *gradient = row_of(grad_out, i), *probability = row_of(out, i);
    double* to = row_to(grad_in, i);
    double sum = 0;
    for (std::int64_t j = 0; j < out.shape[1]; ++j)
      sum += gradient[j] * probability[j];
    for (std::int64_t j = 0; j < out.shape[1]; ++j)
      to[j] = probability[j] * (gradient[j] - sum);
  }
}

Operand logits(const Extent& e, DType dtype, Filling filling, Role role = Role::input) {
  return {.dtype = dtype, .shape = {e.tokens, e.vocabulary}, .role = role, .filling = filling};
}

Problem softmax_forward(const Extent& e, DType dtype) {
  Problem problem{.dimensions = fmt::format("{}x{}", e.tokens, e.vocabulary),
                  .operands = {logits(e, dtype, Filling::normal, Role::output),
                               logits(e, dtype, Filling::logits)},
                  .launch = [softmax = std::make_shared<std::unique_ptr<Softmax>>()](
                                const Operands& v, Stream stream) {
                    if (stream.device.kind != DeviceKind::cuda)
                      return softmax_forward_reference(v[0], v[1]);
                    softmax_of(softmax, v[0]).forward(v[0], v[1], stream);
                  }};
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

/// The formula holds for any numbers instead of probabilities. Those of a whole vocabulary would be
/// denormal in fp16, and the check would measure their rounding, not the kernel's error.
Problem softmax_backward(const Extent& e, DType dtype) {
  Problem problem{.dimensions = fmt::format("{}x{}", e.tokens, e.vocabulary),
                  .operands = {logits(e, dtype, Filling::normal, Role::output),
                               logits(e, dtype, Filling::normal), logits(e, dtype, Filling::unit)},
                  .launch = [softmax = std::make_shared<std::unique_ptr<Softmax>>()](
                                const Operands& v, Stream stream) {
                    if (stream.device.kind != DeviceKind::cuda)
                      return softmax_backward_reference(v[0], v[1], v[2]);
                    softmax_of(softmax, v[0]).backward(v[0], v[1], v[2], stream);
                  }};
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

}  // namespace

void add_cudnn_cases(std::vector<Case>& cases) {
  if (cuda_devices() == 0) return;
  if (std::string why; !has_cudnn(why)) {
    say(fmt::format("note: the rows of cuDNN are left out: {}\n", why));
    return;
  }
  const auto add = [&](const char* op, const char* variant, Problem (*make)(const Extent&, DType)) {
    cases.push_back(
        {.op = op, .variant = variant, .dtypes = model_dtypes(), .make = make, .baseline = true});
  };
  add("layernorm", "cudnn forward", layernorm);
  add("layernorm", "cudnn backward", layernorm_backward);
  add("softmax", "cudnn forward", softmax_forward);
  add("softmax", "cudnn backward", softmax_backward);
}

}  // namespace sluice::bench
