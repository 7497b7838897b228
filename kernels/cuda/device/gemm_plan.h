#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/device/stream.h"
#include "kernels/gemm.h"

namespace sluice::cuda {

/// Everything that may change which algorithm computes a product.
struct GemmKey {
  std::int64_t m, n, k;
  std::int64_t row_a, row_b, row_out;  ///< elements from one stored row to the next
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

/// cuBLASLt's description of a product and the algorithm chosen for it. It stores columns where we
/// store rows, so it is given the transposed product: its A is our b, its B our a.
struct GemmPlan {
  OwnedMatmul matmul;
  OwnedLayout a, b, out;
  cublasLtMatmulAlgo_t algorithm{};
  bool possible = false;  ///< whether there is an algorithm
};

/// The products of one runtime: cuBLASLt's handle and a memo of plans, which take longer to make
/// than a small product takes to run.
class GemmPlans {
 public:
  /// On the device that the calling thread has selected.
  GemmPlans();

  /// Gives the product to the stream; false where cuBLASLt has no algorithm for it. Its bias is
  /// added where `key.bias` says so, and its GELU part of the epilogue where `key.gelu` does.
  bool run(const GemmKey& key, const Gemm& op, Stream stream);

  /// Times the most promising algorithms at a plan's first use. Off unless asked for: which one
  /// wins differs between runs, and with it the last bits of the product; the heuristic alone
  /// gives the same bits in every run.
  void set_tuning(bool tune) { tune_ = tune; }

 private:
  using Candidates = std::vector<cublasLtMatmulHeuristicResult_t>;

  GemmPlan make_plan(const GemmKey& key, const Gemm& op, Stream stream);
  Candidates candidates(const GemmKey& key, const GemmPlan& plan, int most) const;
  std::size_t fastest(const Candidates& candidates, const GemmKey& key, const GemmPlan& plan,
                      const Gemm& op, Stream stream) const;
  void enqueue(const GemmKey& key, const GemmPlan& plan, const cublasLtMatmulAlgo_t& algorithm,
               const Gemm& op, std::byte* out, Stream stream) const;

  std::unique_ptr<cublasLtContext, Destroyer<cublasLtDestroy>> handle_;
  bool tune_ = false;
  std::mutex mutex_;  ///< threads may share a runtime
  std::map<GemmKey, GemmPlan> plans_;
};

}  // namespace sluice::cuda
