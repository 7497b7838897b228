#pragma once

#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/half.h"

namespace sluice {

/// Calls `body.template operator()<T>()` with the C++ type of a floating dtype: turns a run-time
/// dtype into a template argument.
template <class Body>
void dispatch_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f64:
      return body.template operator()<double>();
    case DType::f32:
      return body.template operator()<float>();
    case DType::bf16:
      return body.template operator()<BFloat16>();
    case DType::f16:
      return body.template operator()<Half>();
    case DType::i32:
    case DType::i16:
    case DType::u8:
      break;
  }
  fail("this operation needs a floating-point tensor, not " + std::string(name_of(dtype)));
}

}  // namespace sluice
