#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/io/safetensors.h"
#include "engine/tensor.h"

namespace sluice {

/// The stored form of a dtype, e.g. BF16 for bf16.
StoredType stored_type(DType dtype);

/// Hands out elements from `first` on as they lie in host memory, to be changed at will, or takes
/// them.
using TakeElements = std::function<void(std::int64_t first, std::span<std::byte>)>;
using GiveElements = std::function<void(std::int64_t first, std::span<std::byte>)>;

/// Reads the first `count` elements of a stored tensor, converted from F64, F32, BF16 or F16 to
/// `dtype`, in pieces of a few MiB so that no second copy exists. Errors are usage errors that name
/// file and tensor: a type that holds no floats, and values that are not finite.
void read_floats(const SafetensorsReader& reader, const StoredTensor& stored, std::int64_t count,
                 DType dtype, const TakeElements& take);
void read_floats(const SafetensorsReader& reader, const StoredTensor& stored, const Tensor& target);

/// Appends `count` elements of `dtype` to a safetensors file as `type`, in pieces.
void write_floats(SafetensorsWriter& writer, std::int64_t count, DType dtype,
                  const GiveElements& give, StoredType type);
void write_floats(SafetensorsWriter& writer, const Tensor& source, StoredType type);

}  // namespace sluice
