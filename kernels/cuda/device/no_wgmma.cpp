#include "kernels/base/error.h"
#include "kernels/cuda/attention_wgmma.h"

// Programs that are not compiled for compute capability 9.0 have these instead of the kernel.

namespace sluice::cuda {

bool has_attention_wgmma(int) {
  return false;
}

void attention_wgmma(const AttentionForward&, Stream) {
  fail("this program was compiled without attention by wgmma");
}

}  // namespace sluice::cuda
