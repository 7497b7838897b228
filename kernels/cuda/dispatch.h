#pragma once

#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/half.h"

namespace sluice::cuda {

/// Like dispatch_floating, for the types of the GPU kernels. f64 is only for tests on the CPU.
template <class Body>
void dispatch(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::bf16:
      return body.template operator()<BFloat16>();
    case DType::f16:
      return body.template operator()<Half>();
    case DType::f64:
    case DType::i32:
    case DType::i16:
    case DType::u8:
      break;
  }
  fail("the GPU kernels compute in f32, bf16 and f16, not in " + std::string(name_of(dtype)) +
       "; use --device cpu");
}

}  // namespace sluice::cuda
