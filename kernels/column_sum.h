#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// out[j] = sum over i of in[i, j] (the gradient of a bias); `accumulate` adds to out.
/// in: [rows, columns]; out: [columns], f32 (f64 for f64). Rows are added in order.
struct ColumnSum {
  View out;
  View in;
  bool accumulate = false;
};
void launch_cpu(const ColumnSum& op);
void launch_cuda(const ColumnSum& op, Stream stream);

}  // namespace sluice
