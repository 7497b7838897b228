#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

/// Collects a head of k and of v that tensor-parallel ranks share. `sharers` consecutive ranks of
/// the group have one head; each has computed an equal part of its columns, and attends with query
/// heads of its own.
/// qkv: [B, T, query columns + 2 * head_width / sharers], with the columns of q, of k, and of v;
/// result: [B, T, query columns + 2 * head_width]. All ranks have the same B, T and head width, but
/// may have other numbers of query columns.
/// Forward all-gathers the parts ("key and value"); backward sums the gradients of k and v over the
/// sharers, by a reduce-scatter over the group ("key and value gradient").
Tensor gather_key_value(const Tensor& qkv, std::int64_t head_width, int sharers,
                        TensorGroup& group);

}  // namespace sluice
