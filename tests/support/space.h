#pragma once

#include <cstdint>
#include <vector>

#include "optim/optimizer.h"

// What a ParameterSpace and an Optimizer hold, wherever and however it is stored, as one flat
// tensor of the space's size in host memory. The gaps are zero.

namespace sluice::test {

inline Tensor flat_copy(const ParameterSpace& space, DType dtype, auto&& read_slot) {
  const Tensor all = Tensor::zeros(make_cpu_device(), {space.size()}, dtype);
  for (const auto& slot : space.slots()) {
    const Tensor part = all.slice(slot.offset, {slot.size});
    std::vector<std::byte> bytes(part.bytes());
    read_slot(slot, std::span(bytes));
    part.copy_bytes_from(bytes);
  }
  return all;
}

/// The weights at full precision.
inline Tensor flat_weights(const ParameterSpace& space) {
  return flat_copy(space, space.weight_dtype(), [&](const auto& slot, std::span<std::byte> out) {
    space.read_weights(slot.offset, out);
  });
}

/// Sets them from a flat tensor.
inline void set_weights(ParameterSpace& space, const Tensor& all) {
  for (const auto& slot : space.slots()) {
    const Tensor part = all.slice(slot.offset, {slot.size});
    std::vector<std::byte> bytes(part.bytes());
    part.copy_bytes_to(bytes);
    space.write_weights(slot.offset, bytes);
  }
}

/// A field of the optimizer's state that has one number for every parameter.
inline Tensor flat_state(const ParameterSpace& space, Optimizer& optimizer, std::size_t field) {
  const DType dtype = optimizer.fields(space.slots().front())[field].dtype;
  return flat_copy(space, dtype, [&](const auto& slot, std::span<std::byte> out) {
    optimizer.read_state(slot, field, 0, out);
  });
}

/// The gradients, which lie in one buffer unless they are summed in 16 bits.
inline Tensor flat_gradients(const ParameterSpace& space) {
  return flat_copy(space, accumulator_of(space.working().dtype()),
                   [&](const auto& slot, std::span<std::byte> out) {
                     if (slot.tensor->grad()) slot.tensor->grad().copy_bytes_to(out);
                   });
}

}  // namespace sluice::test
