#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Sorts rows in which q, k and v of each head lie side by side, as GPT-NeoX computes them, into
/// rows of all heads of q, then of k, then of v, as attention reads them; or the other way
/// (`inverse`), which is the gradient.
/// in: [rows, heads, 3, width], flattened; out: [rows, 3, heads, width]; not the same memory.
struct HeadOrder {
  View out;
  View in;
  int heads = 1;
  bool inverse = false;
};
void launch_cpu(const HeadOrder& op);
void launch_cuda(const HeadOrder& op, Stream stream);

}  // namespace sluice
