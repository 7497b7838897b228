#include "kernels/gemm.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/device/gemm_plan.h"
#include "kernels/cuda/device/kernels.h"

namespace sluice {
namespace {

using namespace cuda;

/// The largest power of two, at most 16, that divides an address. No algorithm needs more, and
/// products that are equal in all that matters should be computed in the same way.
std::uint32_t alignment_of(const View& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.address);
  std::uint32_t alignment = 16;
  while (address % alignment != 0)
    alignment /= 2;
  return alignment;
}

/// A single row may have any stride, but cuBLASLt requires one at least as long as the row.
std::int64_t row_of(const View& view) {
  return view.dim(0) > 1 ? view.stride(0) : std::max(view.stride(0), view.dim(1));
}

void check_dtypes(const Gemm& op) {
  const DType in = op.a.dtype;
  if (in != DType::f32 && in != DType::bf16 && in != DType::f16)
    fail("the GPU multiplies matrices in f32, bf16 and f16, not in " + std::string(name_of(in)) +
         "; use --device cpu");
  check(op.b.dtype == in, "a matrix product's operands differ in dtype");
  check(op.out.dtype == in || op.out.dtype == DType::f32,
        "a matrix product writes its operands' dtype or f32");
}

void zero_rows(const View& out, Stream stream) {
  const std::size_t element = size_of(out.dtype);
  SLUICE_CUDA_CHECK(cudaMemset2DAsync(out.address, static_cast<std::size_t>(row_of(out)) * element,
                                      0, static_cast<std::size_t>(out.dim(1)) * element,
                                      static_cast<std::size_t>(out.dim(0)), handle_of(stream)));
}

std::string shape_of(const View& view) {
  return "[" + std::to_string(view.dim(0)) + ", " + std::to_string(view.dim(1)) + "]";
}

/// True if cuBLASLt multiplies by the GELU's slope in its epilogue. A fixed rule decides, so that
/// every run has the same bits: compute capability 9.0 is expected to profit; earlier GPUs have
/// been seen to run it as a separate, slower kernel. It needs 16-bit results and rows of a multiple
/// of 8. The GELU itself is never in the epilogue: that would apply it to the sum before rounding,
/// and no kernel could recompute it from the stored result.
bool slope_in_epilogue(const Gemm& op, const GemmKey& key, const DeviceQueue& queue) {
  constexpr int first_that_pays = 90;
  return op.gelu_input && queue.capability >= first_that_pays && key.out != DType::f32 &&
         key.n % 8 == 0 && key.row_out == key.n && alignment_of(op.gelu_input) == 16 &&
         key.bias == static_cast<bool>(op.bias);
}

}  // namespace

void launch_cuda(const Gemm& op, Stream stream) {
  const auto [m, n, k] = size_of(op);
  check_dtypes(op);
  if (m == 0 || n == 0) return;
  if (k == 0) {  // the sum is empty
    if (!op.accumulate) zero_rows(op.out, stream);
    if (op.bias) add_bias(op.out, op.bias, stream);
    return;
  }
  const DeviceQueue& queue = device_queue_of(stream);
  constexpr int first_with_tf32 = 80;
  GemmKey key{.m = m,
              .n = n,
              .k = k,
              .row_a = row_of(op.a),
              .row_b = row_of(op.b),
              .row_out = row_of(op.out),
              .in = op.a.dtype,
              .out = op.out.dtype,
              .transpose_a = op.transpose_a,
              .transpose_b = op.transpose_b,
              .accumulate = op.accumulate,
              .tf32 = op.tf32 && op.a.dtype == DType::f32 && queue.capability >= first_with_tf32,
              // cuBLASLt adds a bias of out's dtype, which its kernels read 16 bytes at a time.
              .bias = op.bias && op.bias.dtype == op.out.dtype && alignment_of(op.bias) == 16,
              .gelu_slope = false,
              .alignment_a = alignment_of(op.a),
              .alignment_b = alignment_of(op.b),
              .alignment_out = alignment_of(op.out),
              .workspace = queue.workspace_bytes};
  if (op.pre_activation || op.gelu_input) {
    key.gelu_slope = slope_in_epilogue(op, key, queue);
    if (key.gelu_slope && queue.gemms->run(key, op, stream)) return;
    launch_in_two_steps(op, [stream](const auto& step) { launch_cuda(step, stream); });
    return;
  }
  if (key.bias && queue.gemms->run(key, op, stream)) return;
  key.bias = false;
  if (!queue.gemms->run(key, op, stream))
    fail("cuBLASLt has no algorithm for the product of " + shape_of(op.a) + " and " +
         shape_of(op.b) + " in " + std::string(name_of(op.a.dtype)) +
         " on this GPU; use another --precision or --device cpu");
  if (op.bias) add_bias(op.out, op.bias, stream);
}

}  // namespace sluice
