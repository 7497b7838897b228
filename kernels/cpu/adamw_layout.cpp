#include <initializer_list>
#include <string>

#include "kernels/adamw.h"
#include "kernels/base/error.h"

// Layout checks that both devices share.

namespace sluice {
namespace {

bool one_of(DType dtype, std::initializer_list<DType> list) {
  for (const DType allowed : list)
    if (dtype == allowed) return true;
  return false;
}

void check_sizes(const AdamW& op) {
  check(op.first_moment && op.second_moment && op.grad, "AdamW needs two moments and a gradient");
  for (const View& view :
       {op.master, op.first_moment, op.second_moment, op.working, op.remainder}) {
    check(!view || view.size() == op.grad.size(), "the arrays of an AdamW update differ in size");
  }
  check(!op.gradient_scale || op.gradient_scale.size() == 1, "a gradient scale is one number");
}

void check_weights(const AdamW& op) {
  if (op.remainder) {
    check(!op.master && op.working && op.working.dtype == DType::bf16 &&
              op.remainder.dtype == DType::i16,
          "a split master weight is a bf16 working weight and an i16 remainder");
    return;
  }
  check(static_cast<bool>(op.master), "AdamW needs master weights, whole or split");
  check(one_of(op.master.dtype, {DType::f32, DType::f64}), "master weights are f32 or f64");
  check(!op.working || one_of(op.working.dtype, {DType::f32, DType::bf16, DType::f16}),
        "working weights are f32, bf16 or f16");
}

void check_scales(const AdamW& op) {
  check(op.row_length > 0 && op.grad.size() % op.row_length == 0,
        "u8 moments need the length of a row, and whole rows");
  const std::int64_t blocks =
      op.grad.size() / op.row_length * ((op.row_length + AdamW::block - 1) / AdamW::block);
  for (const View& scale : {op.first_scale, op.second_scale})
    check(scale && scale.dtype == DType::f32 && scale.size() == blocks,
          "u8 moments need an f32 scale for each block of 256 elements of a row");
}

}  // namespace

void check_layout(const AdamW& op) {
  check_sizes(op);
  const DType m = op.first_moment.dtype, v = op.second_moment.dtype;
  if (op.master && op.master.dtype == DType::f64) {
    check(m == DType::f64 && v == DType::f64 && op.grad.dtype == DType::f64 && !op.remainder &&
              (!op.working || op.working.dtype == DType::f64),
          "f64 master weights are updated in f64 alone");
  } else {
    check_weights(op);
    const bool known = (m == DType::f32 && v == DType::f32) ||
                       (m == DType::bf16 && one_of(v, {DType::f32, DType::bf16})) ||
                       (m == DType::u8 && v == DType::u8);
    if (!known)
      fail("AdamW has no moments in " + std::string(name_of(m)) + " and " +
           std::string(name_of(v)) +
           ", only in f32 and f32, bf16 and f32, bf16 and bf16, or u8 and u8");
    check(one_of(op.grad.dtype, {DType::f32, DType::bf16}), "gradients of AdamW are f32 or bf16");
  }
  if (m == DType::u8) return check_scales(op);
  check(!op.first_scale && !op.second_scale, "only u8 moments have scales");
}

}  // namespace sluice
