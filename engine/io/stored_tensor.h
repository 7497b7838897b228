#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "engine/io/gguf.h"
#include "engine/io/safetensors.h"
#include "engine/tensor.h"
#include "kernels/base/error.h"

namespace sluice {

/// Returns the stored type of a dtype, e.g. BF16 for bf16.
StoredType stored_type(DType dtype);

/// TakeElements receives a piece of elements in host memory, from element `first` on, which it may
/// modify. GiveElements fills such a piece.
using TakeElements = std::function<void(std::int64_t first, std::span<std::byte>)>;
using GiveElements = std::function<void(std::int64_t first, std::span<std::byte>)>;

/// Throws Error (numerical) if a value would become infinite as `type`: it says so of `what`, which
/// names the tensor, with the element (the first value is number `first`), the value and the types
/// that can hold it. For a value that is not finite the kind of the error is `not_finite`.
void require_held(std::span<const std::byte> values, DType dtype, StoredType type,
                  std::int64_t first, const std::string& what,
                  ErrorKind not_finite = ErrorKind::numerical);

/// Returns the number of the first value that is infinite or NaN; -1: all are finite.
std::int64_t first_not_finite(std::span<const std::byte> values, DType dtype);

/// Reads elements [first, first + count) of a stored tensor and converts them from F64, F32, BF16
/// or F16 to `dtype`, in pieces of a few MiB, so that no second copy exists. Usage errors name the
/// file and tensor: a type that holds no floats, or a value that is not finite. A value that would
/// be infinite as `dtype` is a numerical error.
void read_floats(const SafetensorsReader& reader, const StoredTensor& stored, std::int64_t first,
                 std::int64_t count, DType dtype, const TakeElements& take);
void read_floats(const SafetensorsReader& reader, const StoredTensor& stored, const Tensor& target);
/// The same for a GGUF file; `first` and `count` must be multiples of the tensor's block size.
void read_floats(const GgufReader& reader, const GgufTensor& stored, std::int64_t first,
                 std::int64_t count, DType dtype, const TakeElements& take);

/// Converts values of `dtype` to F32, BF16, F16 or F64. Both ranges hold the same number of values.
void convert_floats(std::span<std::byte> from, DType dtype, std::span<std::byte> to,
                    StoredType type);

/// Appends `count` elements of `dtype` to a safetensors file as `type`, in pieces.
void write_floats(SafetensorsWriter& writer, std::int64_t count, DType dtype,
                  const GiveElements& give, StoredType type);
void write_floats(SafetensorsWriter& writer, const Tensor& source, StoredType type);

}  // namespace sluice
