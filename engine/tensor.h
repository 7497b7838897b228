#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/device_context.h"
#include "kernels/base/view.h"

namespace sluice {

class Node;
struct TensorImpl;

/// Bytes on a device, returned to its arena with the last owner.
class Storage {
 public:
  Storage(DevicePtr device, std::size_t bytes)
      : device_(std::move(device)), start_(device_->allocate(bytes)), bytes_(bytes) {}
  ~Storage() { device_->release(start_); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  const DevicePtr& device() const { return device_; }
  std::byte* start() const { return start_; }
  std::size_t bytes() const { return bytes_; }

 private:
  DevicePtr device_;
  std::byte* start_;
  std::size_t bytes_;
};

using Shape = std::vector<std::int64_t>;

std::int64_t element_count(std::span<const std::int64_t> shape);
/// "[4, 64, 768]"
std::string to_string(std::span<const std::int64_t> shape);

/// A value handle to an array on a device: copies share the elements. Always contiguous and
/// row-major (kernels that need strides build their own View). A default Tensor is "none".
class Tensor {
 public:
  Tensor() = default;

  /// Contents are whatever was there before.
  static Tensor empty(const DevicePtr& device, const Shape& shape, DType dtype);
  static Tensor zeros(const DevicePtr& device, const Shape& shape, DType dtype);
  /// Copies `values` to the device, converted to `dtype`.
  static Tensor from_host(const DevicePtr& device, const Shape& shape, DType dtype,
                          std::span<const double> values);
  static Tensor from_tokens(const DevicePtr& device, const Shape& shape,
                            std::span<const std::int32_t> ids);

  explicit operator bool() const { return impl_ != nullptr; }
  /// Whether two handles name the same tensor.
  bool same_as(const Tensor& other) const { return impl_ == other.impl_; }

  const Shape& shape() const;
  std::int64_t dim(int d) const;
  int rank() const { return static_cast<int>(shape().size()); }
  std::int64_t size() const;
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype()); }
  DType dtype() const;
  const DevicePtr& device() const;
  Stream stream() const { return device()->stream(); }

  /// For kernels. `view(rows, columns)` sees the same elements as a matrix.
  View view() const;
  View view(std::initializer_list<std::int64_t> shape) const;

  /// The same elements under another shape of the same size, without their history, like slice():
  /// gradients do not flow through either.
  Tensor reshape(const Shape& shape) const;
  /// Elements [first, first + count) of the flattened tensor, sharing memory.
  Tensor slice(std::int64_t first, const Shape& shape) const;
  /// The same elements without their history: what a Node saves of its own output, since a handle
  /// to the output itself would keep the node alive for ever.
  Tensor detach() const { return slice(0, shape()); }

  /// Copies to the host, widened to double. For tests, sampling and small results.
  std::vector<double> to_host() const;
  /// One element.
  double item(std::int64_t index = 0) const;
  void copy_bytes_to(std::span<std::byte> out) const;
  void copy_bytes_from(std::span<const std::byte> in) const;
  void fill_zero() const;

  // --- gradients (engine/autograd.h has the rest) ---

  bool requires_grad() const;
  /// Makes a leaf collect its gradient.
  Tensor& set_requires_grad(bool value);
  /// The gradient that backward passes have left here; none before the first.
  Tensor grad() const;

  TensorImpl* impl() const { return impl_.get(); }

 private:
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<TensorImpl> impl_;
};

/// Where the gradient of a leaf goes. `filled` tells whether something is in the buffer, so that
/// the first contribution of a step overwrites and no zeroing pass is needed.
struct GradientBuffer {
  Tensor tensor;
  bool filled = false;
  /// Called by backward() when the last contribution of that pass has arrived.
  std::function<void()> ready;
};

/// What handles share. Ops reach it through autograd.h; nothing else should.
struct TensorImpl {
  std::shared_ptr<Storage> storage;
  std::size_t offset = 0;  ///< bytes from the storage's start
  Shape shape;
  DType dtype = DType::f32;
  bool requires_grad = false;
  GradientBuffer gradient;         ///< of a leaf
  std::shared_ptr<Node> producer;  ///< of a result: the graph is owned by its outputs
  std::size_t producer_output = 0;
};

}  // namespace sluice
