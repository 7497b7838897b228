#include "kernels/gemm.h"

#include "kernels/cpu/gemm_few_rows.h"
#include "kernels/cpu/gemm_plain.h"
#include "kernels/gemm_gelu.h"
#ifdef SLUICE_HAS_ONEDNN
#include "kernels/cpu/gemm_onednn.h"
#endif

namespace sluice {

void launch_cpu(const Gemm& op) {
  if (launch_in_two_steps(op, [](const auto& step) { launch_cpu(step); })) return;
  const std::int64_t m = op.transpose_a ? op.a.dim(1) : op.a.dim(0);
  const std::int64_t k = op.transpose_a ? op.a.dim(0) : op.a.dim(1);
  const std::int64_t n = op.transpose_b ? op.b.dim(0) : op.b.dim(1);
  const std::int64_t b_k = op.transpose_b ? op.b.dim(1) : op.b.dim(0);
  check(k == b_k && m == op.out.dim(0) && n == op.out.dim(1),
        "a matrix product's operands do not fit together");
  if (m == 0 || n == 0) return;
  if (cpu::has_few_rows(op)) return cpu::gemm_few_rows(op);
#ifdef SLUICE_HAS_ONEDNN
  if (op.a.dtype != DType::f64 && k > 0) return cpu::gemm_onednn(op);
#endif
  cpu::gemm_plain(op);
}

}  // namespace sluice
