#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/cuda/device/stream.h"
#include "kernels/gemm.h"

namespace sluice::cuda {

/// Everything that may influence which algorithm computes a product.
struct GemmKey {
  std::int64_t m, n, k;
  std::int64_t row_a, row_b, row_out;  ///< elements between the starts of stored rows
  DType in, out;
  bool transpose_a, transpose_b, accumulate, tf32, bias;
  bool gelu_slope;  ///< the result is multiplied by the slope of a GELU
  std::uint32_t alignment_a, alignment_b, alignment_out;  ///< bytes
  std::size_t workspace;

  auto operator<=>(const GemmKey&) const = default;
};

template <auto destroy>
struct Destroyer {
  template <class Opaque>
  void operator()(Opaque* object) const {
    destroy(object);
  }
};
using OwnedMatmul =
    std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroyer<cublasLtMatmulDescDestroy>>;
using OwnedLayout =
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroyer<cublasLtMatrixLayoutDestroy>>;
using OwnedPreference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroyer<cublasLtMatmulPreferenceDestroy>>;

/// cuBLASLt's description of a product and the algorithm chosen for it. cuBLASLt is column-major
/// and this project is row-major, so it gets the transposed product: its A is our b, its B our a.
struct GemmPlan {
  OwnedMatmul matmul;
  OwnedLayout a, b, out;
  cublasLtMatmulAlgo_t algorithm{};
  bool possible = false;  ///< true if there is an algorithm
};

/// The products of one runtime: cuBLASLt's handle and a cache of plans, which take longer to make
/// than a small product takes to run.
class GemmPlans {
 public:
  /// Uses the device that the calling thread has selected.
  GemmPlans();

  /// Enqueues the product on the stream; returns false if cuBLASLt has no algorithm for it. Adds
  /// the bias if `key.bias` is set, and multiplies by the GELU's slope if `key.gelu_slope` is set.
  bool run(const GemmKey& key, const Gemm& op, Stream stream);

 private:
  GemmPlan make_plan(const GemmKey& key, const Gemm& op) const;

  std::unique_ptr<cublasLtContext, Destroyer<cublasLtDestroy>> handle_;
  std::mutex mutex_;  ///< threads may share a runtime
  std::map<GemmKey, GemmPlan> plans_;
};

}  // namespace sluice::cuda
