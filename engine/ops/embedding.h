#pragma once

#include <cstdint>

#include "engine/tensor.h"

namespace sluice {

/// token_table[tokens] + position_table[first_position + t]. tokens: [B, T] i32; result: [B, T, C]
/// in the tables' dtype. Token ids are trusted: whoever read them has checked their range.
Tensor embedding(const Tensor& tokens, const Tensor& token_table, const Tensor& position_table,
                 std::int64_t first_position = 0);

}  // namespace sluice
