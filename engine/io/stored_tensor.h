#pragma once

#include "engine/io/safetensors.h"
#include "engine/tensor.h"

namespace sluice {

/// The stored form of a dtype, e.g. BF16 for bf16.
StoredType stored_type(DType dtype);

/// Copies the first `target.size()` elements of a stored tensor to `target`, converted from F64,
/// F32, BF16 or F16, in pieces of a few MiB so that no second copy exists. Errors are usage errors
/// that name file and tensor: a type that holds no floats, and values that are not finite.
void read_floats(const SafetensorsReader& reader, const StoredTensor& stored, const Tensor& target);

/// Appends the elements of `source` to a safetensors file as `type`, in pieces.
void write_floats(SafetensorsWriter& writer, const Tensor& source, StoredType type);

}  // namespace sluice
