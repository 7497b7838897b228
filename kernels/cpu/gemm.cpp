#include "kernels/cpu/gemm.h"

namespace sluice {

void launch_cpu(const Gemm& op) {
  if (launch_in_two_steps(op, [](const auto& step) { launch_cpu(step); })) return;
  const GemmSize size = size_of(op);
  if (size.m == 0 || size.n == 0) return;
  if (cpu::has_few_rows(op)) return cpu::gemm_few_rows(op);
#ifdef SLUICE_HAS_ONEDNN
  if (op.a.dtype != DType::f64 && size.k > 0) return cpu::gemm_onednn(op);
#endif
  cpu::gemm_plain(op);
}

}  // namespace sluice
