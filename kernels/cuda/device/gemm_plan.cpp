#include "kernels/cuda/device/gemm_plan.h"

namespace sluice::cuda {
namespace {

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

template <class T>
void set(const OwnedMatmul& matmul, cublasLtMatmulDescAttributes_t attribute, T value) {
  SLUICE_CUBLAS_CHECK(
      cublasLtMatmulDescSetAttribute(matmul.get(), attribute, &value, sizeof(value)));
}

template <class T>
void set(const OwnedPreference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         T value) {
  SLUICE_CUBLAS_CHECK(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

/// Makes the layout of a matrix that this project stores as `rows` of `columns` elements.
OwnedLayout make_layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row) {
  cublasLtMatrixLayout_t layout = nullptr;
  SLUICE_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type_of(dtype),
                                                 static_cast<std::uint64_t>(columns),
                                                 static_cast<std::uint64_t>(rows), row));
  return OwnedLayout(layout);
}

cublasLtEpilogue_t epilogue_of(const GemmKey& key) {
  if (key.gelu_slope) return CUBLASLT_EPILOGUE_DGELU;
  return key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// Sets the addresses that the epilogue reads besides the result.
void set_pointers(const OwnedMatmul& matmul, const GemmKey& key, const Gemm& op) {
  if (key.bias)
    set(matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(op.bias.address));
  if (key.gelu_slope)
    set(matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
        static_cast<void*>(op.gelu_input.address));
}

OwnedMatmul make_matmul(const GemmKey& key, const Gemm& op) {
  cublasLtMatmulDesc_t description = nullptr;
  // Sums are kept in f32 for operands of every type.
  SLUICE_CUBLAS_CHECK(cublasLtMatmulDescCreate(
      &description, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  OwnedMatmul matmul(description);
  set(matmul, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(matmul, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key));
  if (key.gelu_slope) set(matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
  // The heuristic takes the alignment of these pointers into account.
  set_pointers(matmul, key, op);
  return matmul;
}

}  // namespace

GemmPlans::GemmPlans() {
  cublasLtHandle_t handle = nullptr;
  SLUICE_CUBLAS_CHECK(cublasLtCreate(&handle));
  handle_.reset(handle);
}

bool GemmPlans::run(const GemmKey& key, const Gemm& op, Stream stream) {
  const std::lock_guard lock(mutex_);
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, make_plan(key, op)).first;
  const GemmPlan& plan = found->second;
  if (!plan.possible) return false;
  set_pointers(plan.matmul, key, op);
  const float alpha = 1;
  const float beta = key.accumulate ? 1 : 0;
  ++queue_of(stream).launches;
  SLUICE_CUBLAS_CHECK(cublasLtMatmul(
      handle_.get(), plan.matmul.get(), &alpha, op.b.address, plan.b.get(), op.a.address,
      plan.a.get(), &beta, op.out.address, plan.out.get(), op.out.address, plan.out.get(),
      &plan.algorithm, queue_of(stream).workspace, key.workspace, handle_of(stream)));
  return true;
}

GemmPlan GemmPlans::make_plan(const GemmKey& key, const Gemm& op) const {
  GemmPlan plan{.matmul = make_matmul(key, op),
                .a = make_layout(key.in, op.a.dim(0), op.a.dim(1), key.row_a),
                .b = make_layout(key.in, op.b.dim(0), op.b.dim(1), key.row_b),
                .out = make_layout(key.out, key.m, key.n, key.row_out)};
  cublasLtMatmulPreference_t made = nullptr;
  SLUICE_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&made));
  const OwnedPreference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{key.workspace});
  // If k is split, the parts are summed in f32 and in a fixed order, not in the order of arrival
  // and not in out's dtype.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment_out);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment_out);
  // The heuristic alone decides: the algorithm that a clock finds fastest differs between runs, and
  // so would the last bits of the product.
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), plan.matmul.get(), plan.b.get(), plan.a.get(), plan.out.get(), plan.out.get(),
      preference.get(), 1, &best, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return plan;
  SLUICE_CUBLAS_CHECK(status);
  plan.possible = count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = best.algo;
  return plan;
}

}  // namespace sluice::cuda
