#include "kernels/gemm.h"

#include "kernels/cuda/queue.h"
#include "kernels/cuda/simt/device.h"

namespace sluice {

/// Matrix products are not emulated: the CPU kernels run them in stream order.
void launch_cuda(const Gemm& op, Stream stream) {
  if (launch_in_two_steps(op, [stream](const auto& step) { launch_cuda(step, stream); })) return;
  ++cuda::queue_of(stream).launches;
  simt::enqueue(stream, [op] { launch_cpu(op); });
}

}  // namespace sluice
