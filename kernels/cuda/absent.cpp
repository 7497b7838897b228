// The GPU side of a build without CUDA: every function throws an Error.

#include "kernels/adafactor.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/base/error.h"
#include "kernels/base/runtime.h"
#include "kernels/clip.h"
#include "kernels/column_sum.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/layernorm.h"
#include "kernels/reduce.h"
#include "kernels/relu.h"
#include "kernels/sample.h"
#include "kernels/sgd.h"
#include "kernels/split_cross_entropy.h"
#include "kernels/squared_norm.h"

namespace sluice {
namespace {

constexpr const char* reason =
    "this program was built without CUDA; use --device cpu, or build it where the CUDA toolkit is "
    "installed";

[[noreturn]] void refuse() {
  fail(reason, ErrorKind::usage);
}

}  // namespace

int cuda_devices(std::string* why) {
  if (why != nullptr) *why = reason;
  return 0;
}

std::unique_ptr<Runtime> make_cuda_runtime(int) {
  refuse();
}

void launch_cuda(const Adafactor&, Stream) {
  refuse();
}
void launch_cuda(const AdamW&, Stream) {
  refuse();
}
void launch_cuda(const AttentionForward&, Stream) {
  refuse();
}
void launch_cuda(const AttentionBackward&, Stream) {
  refuse();
}
void launch_cuda(const CachedAttention&, Stream) {
  refuse();
}
void launch_cuda(const ClipFactor&, Stream) {
  refuse();
}
void launch_cuda(const ColumnSum&, Stream) {
  refuse();
}
void launch_cuda(const CrossEntropy&, Stream) {
  refuse();
}
void launch_cuda(const Dropout&, Stream) {
  refuse();
}
void launch_cuda(const Add&, Stream) {
  refuse();
}
void launch_cuda(const Cast&, Stream) {
  refuse();
}
void launch_cuda(const Fill&, Stream) {
  refuse();
}
void launch_cuda(const EmbeddingForward&, Stream) {
  refuse();
}
void launch_cuda(const EmbeddingBackward&, Stream) {
  refuse();
}
void launch_cuda(const GeluForward&, Stream) {
  refuse();
}
void launch_cuda(const GeluBackward&, Stream) {
  refuse();
}
void launch_cuda(const Gemm&, Stream) {
  refuse();
}
void launch_cuda(const LayerNormForward&, Stream) {
  refuse();
}
void launch_cuda(const LayerNormBackward&, Stream) {
  refuse();
}
void launch_cuda(const Sum&, Stream) {
  refuse();
}
void launch_cuda(const ReluForward&, Stream) {
  refuse();
}
void launch_cuda(const ReluBackward&, Stream) {
  refuse();
}
void launch_cuda(const SampleToken&, Stream) {
  refuse();
}
void launch_cuda(const Sgd&, Stream) {
  refuse();
}
void launch_cuda(const CrossEntropyPartials&, Stream) {
  refuse();
}
void launch_cuda(const CrossEntropyOfPartials&, Stream) {
  refuse();
}
void launch_cuda(const SquaredNorm&, Stream) {
  refuse();
}

}  // namespace sluice
