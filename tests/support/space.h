#pragma once

#include <cstdint>
#include <vector>

#include "engine/autograd.h"
#include "optim/optimizer.h"

// Reads what a ParameterSpace and an Optimizer hold, wherever and however it is stored, as one flat
// tensor of the space's size in host memory. Gaps between parameters are zero.

namespace sluice::test {

inline std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor.copy_bytes_to(bytes);
  return bytes;
}

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

/// Returns the weights at full precision.
inline Tensor flat_weights(const ParameterSpace& space) {
  return flat_copy(space, space.weight_dtype(), [&](const auto& slot, std::span<std::byte> out) {
    space.read_weights(slot.offset, out);
  });
}

/// Sets the weights from a flat tensor.
inline void set_weights(ParameterSpace& space, const Tensor& all) {
  for (const auto& slot : space.slots())
    space.write_weights(slot.offset, bytes_of(all.slice(slot.offset, {slot.size})));
}

/// Returns a field of the optimizer state that has one number per parameter element.
inline Tensor flat_state(const ParameterSpace& space, Optimizer& optimizer, std::size_t field) {
  const DType dtype = optimizer.fields(space.slots().front())[field].dtype;
  return flat_copy(space, dtype, [&](const auto& slot, std::span<std::byte> out) {
    optimizer.read_state(slot, field, 0, out);
  });
}

/// Waits for all updates; returns the working weights, the weights and every field of the state.
inline std::vector<std::vector<std::byte>> everything(const ParameterSpace& space,
                                                      Optimizer& optimizer) {
  optimizer.synchronize();
  std::vector<Tensor> tensors{space.working().flat(), flat_weights(space)};
  for (std::size_t field = 0; field < optimizer.fields(space.slots().front()).size(); ++field)
    tensors.push_back(flat_state(space, optimizer, field));
  std::vector<std::vector<std::byte>> bytes;
  for (const Tensor& tensor : tensors)
    bytes.push_back(bytes_of(tensor));
  return bytes;
}

/// Stores a gradient where a backward pass would.
inline void set_gradient(const ParameterSpace& space, const ParameterSpace::Slot& slot,
                         const std::vector<double>& values) {
  const DType dtype = accumulator_of(space.working().dtype());
  const Tensor gradient = Tensor::from_host(space.device(), slot.shape, dtype, values);
  leaf_gradient_target(*slot.tensor, dtype).tensor.copy_bytes_from(bytes_of(gradient));
}

/// Returns the gradients, which are in one buffer unless they are summed in 16 bits.
inline Tensor flat_gradients(const ParameterSpace& space) {
  return flat_copy(space, accumulator_of(space.working().dtype()),
                   [&](const auto& slot, std::span<std::byte> out) {
                     if (slot.tensor->grad()) slot.tensor->grad().copy_bytes_to(out);
                   });
}

}  // namespace sluice::test
