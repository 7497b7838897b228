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

/// Bytes on a device; the last owner returns them to the device's arena.
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
/// Formats a shape like "[4, 64, 768]".
std::string to_string(std::span<const std::int64_t> shape);

/// A value handle to an array on a device: copies share the elements. Always contiguous and
/// row-major (kernels that need strides build their own View). A default Tensor is "none".
class Tensor {
 public:
  Tensor() = default;

  /// The contents are undefined.
  static Tensor empty(const DevicePtr& device, const Shape& shape, DType dtype);
  static Tensor empty_like(const Tensor& other) {
    return empty(other.device(), other.shape(), other.dtype());
  }
  static Tensor zeros(const DevicePtr& device, const Shape& shape, DType dtype);
  /// Converts `values` to `dtype` and copies them to the device.
  static Tensor from_host(const DevicePtr& device, const Shape& shape, DType dtype,
                          std::span<const double> values);
  static Tensor from_tokens(const DevicePtr& device, const Shape& shape,
                            std::span<const std::int32_t> ids);

  explicit operator bool() const { return impl_ != nullptr; }
  /// True if both handles name the same tensor.
  bool same_as(const Tensor& other) const { return impl_ == other.impl_; }

  const Shape& shape() const;
  std::int64_t dim(int d) const;
  int rank() const { return static_cast<int>(shape().size()); }
  std::int64_t size() const;
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype()); }
  DType dtype() const;
  const DevicePtr& device() const;
  Stream stream() const { return device()->stream(); }

  /// Describes the elements to kernels. `view(rows, columns)` sees the same elements as a matrix.
  View view() const;
  View view(std::initializer_list<std::int64_t> shape) const;

  /// The same elements under another shape of the same size. Like slice(), the result has no
  /// autograd history: gradients do not flow through either.
  Tensor reshape(const Shape& shape) const;
  /// Elements [first, first + count) of the flattened tensor, sharing memory. Of the elements
  /// behind them, `spare_rows` rows are promised to stay zero.
  Tensor slice(std::int64_t first, const Shape& shape, std::int64_t spare_rows = 0) const;
  /// A matrix together with its spare rows, sharing memory. With a round number of rows a GPU
  /// multiplies it several times faster.
  Tensor with_spare_rows() const;
  /// The same elements without autograd history. A Node saves this form of its own output, because
  /// a handle to the output itself would keep the node alive for ever.
  Tensor detach() const { return slice(0, shape()); }

  /// Copies the elements to the host as double. Meant for tests, sampling and small results.
  std::vector<double> to_host() const;
  /// Returns one element as double.
  double item(std::int64_t index = 0) const;
  void copy_bytes_to(std::span<std::byte> out) const;
  void copy_bytes_from(std::span<const std::byte> in) const;
  void fill_zero() const;

  // --- gradients (engine/autograd.h has the rest) ---

  bool requires_grad() const;
  /// Makes a leaf collect its gradient in backward passes.
  Tensor& set_requires_grad(bool value);
  /// The gradient that backward passes have accumulated; none before the first.
  Tensor grad() const;

  TensorImpl* impl() const { return impl_.get(); }

 private:
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<TensorImpl> impl_;
};

/// Buffer for the gradient of a leaf. `filled` tells whether it has contents, so that the first
/// contribution of a step overwrites it and no zeroing pass is needed.
struct GradientBuffer {
  Tensor tensor;
  bool filled = false;
  /// Gradient-begin hook: called before the first contribution is written.
  std::function<void()> begin;
  /// Gradient-ready hook: backward() calls it when the last contribution of the pass has arrived.
  std::function<void()> ready;
};

/// The state that handles share. Ops reach it through autograd.h; other code should not use it.
struct TensorImpl {
  std::shared_ptr<Storage> storage;
  std::size_t offset = 0;  ///< bytes from the storage's start
  Shape shape;
  std::int64_t spare_rows = 0;  ///< rows of zeros behind the last one
  DType dtype = DType::f32;
  bool requires_grad = false;
  GradientBuffer gradient;         ///< only of a leaf
  std::shared_ptr<Node> producer;  ///< only of a result; outputs own their graph
  std::size_t producer_output = 0;
};

}  // namespace sluice
