#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// out = a + b, elementwise, all of one dtype; out may be a or b.
struct Add {
  View out;
  View a;
  View b;
};
void launch_cpu(const Add& op);
void launch_cuda(const Add& op, Stream stream);

/// matrix[i, j] += row[j], such as the bias of logits. matrix: [rows, columns], f32 (f64), rows may
/// be strided; row: [columns] of any dtype.
struct AddRow {
  View matrix;
  View row;
};
void launch_cpu(const AddRow& op);
void launch_cuda(const AddRow& op, Stream stream);

/// out = in, converted to out's dtype. bf16 from f32 rounds ties to even, or with `half_away` ties
/// away from zero, as working weights are derived from their master.
struct Cast {
  View out;
  View in;
  bool half_away = false;
};
void launch_cpu(const Cast& op);
void launch_cuda(const Cast& op, Stream stream);

/// out = factor * in, all of one dtype; out may be in.
struct Scale {
  View out;
  View in;
  double factor = 1;
};
void launch_cpu(const Scale& op);
void launch_cuda(const Scale& op, Stream stream);

/// out = value
struct Fill {
  View out;
  double value = 0;
};
void launch_cpu(const Fill& op);
void launch_cuda(const Fill& op, Stream stream);

/// out = max(in, 0)
struct ReluForward {
  View out;
  View in;
};
void launch_cpu(const ReluForward& op);
void launch_cuda(const ReluForward& op, Stream stream);

/// grad_in = grad_out if out > 0, else 0. Uses the output, so the input need not be kept. grad_in
/// may be grad_out.
struct ReluBackward {
  View grad_in;
  View grad_out;
  View out;
};
void launch_cpu(const ReluBackward& op);
void launch_cuda(const ReluBackward& op, Stream stream);

/// GELU in its tanh form (Hendrycks & Gimpel, 2016), as in GPT-2:
///   out = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
/// or, if `exact`, by its definition, as in GPT-NeoX: out = x/2 * (1 + erf(x / sqrt(2)))
struct GeluForward {
  View out;
  View in;
  bool exact = false;
};
void launch_cpu(const GeluForward& op);
void launch_cuda(const GeluForward& op, Stream stream);

/// grad_in = grad_out * gelu'(in); grad_in may be grad_out.
struct GeluBackward {
  View grad_in;
  View grad_out;
  View in;
  bool exact = false;
};
void launch_cpu(const GeluBackward& op);
void launch_cuda(const GeluBackward& op, Stream stream);

}  // namespace sluice
