#include "engine/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "engine/autograd.h"
#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"

namespace sluice {

std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const auto dimension : shape)
    count *= dimension;
  return count;
}

std::string to_string(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Tensor Tensor::empty(const DevicePtr& device, const Shape& shape, DType dtype) {
  auto impl = std::make_shared<TensorImpl>();
  const auto bytes = static_cast<std::size_t>(element_count(shape)) * size_of(dtype);
  impl->storage = std::make_shared<Storage>(device, bytes);
  impl->shape = shape;
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Tensor Tensor::zeros(const DevicePtr& device, const Shape& shape, DType dtype) {
  Tensor tensor = empty(device, shape, dtype);
  tensor.fill_zero();
  return tensor;
}

Tensor Tensor::from_host(const DevicePtr& device, const Shape& shape, DType dtype,
                         std::span<const double> values) {
  Tensor tensor = empty(device, shape, dtype);
  check(static_cast<std::int64_t>(values.size()) == tensor.size(),
        "the number of host values differs from the tensor's size");
  dispatch_floating(dtype, [&]<class T>() {
    std::vector<T> host;
    host.reserve(values.size());
    for (const double value : values)
      host.push_back(static_cast<T>(static_cast<cpu::Accumulator<T>>(value)));
    tensor.copy_bytes_from(std::as_bytes(std::span(host)));
  });
  return tensor;
}

Tensor Tensor::from_tokens(const DevicePtr& device, const Shape& shape,
                           std::span<const std::int32_t> ids) {
  Tensor tensor = empty(device, shape, DType::i32);
  tensor.copy_bytes_from(std::as_bytes(ids));
  return tensor;
}

const Shape& Tensor::shape() const {
  return impl_->shape;
}

std::int64_t Tensor::dim(int d) const {
  return impl_->shape[static_cast<std::size_t>(d < 0 ? d + rank() : d)];
}

std::int64_t Tensor::size() const {
  return element_count(impl_->shape);
}

DType Tensor::dtype() const {
  return impl_->dtype;
}

const DevicePtr& Tensor::device() const {
  return impl_->storage->device();
}

View Tensor::view() const {
  View view;
  check(rank() <= View::max_rank, "a tensor for a kernel has at most four dimensions");
  view.address = impl_->storage->start() + impl_->offset;
  view.dtype = impl_->dtype;
  view.rank = rank();
  std::int64_t stride = 1;
  for (int d = rank() - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    view.shape[at] = impl_->shape[at];
    view.strides[at] = stride;
    stride *= impl_->shape[at];
  }
  return view;
}

View Tensor::view(std::initializer_list<std::int64_t> shape) const {
  const View view(impl_->storage->start() + impl_->offset, impl_->dtype, shape);
  check(view.size() == size(), "a view must have as many elements as its tensor");
  return view;
}

Tensor Tensor::reshape(const Shape& shape) const {
  if (element_count(shape) != size())
    fail(fmt::format("cannot see a tensor of shape {} as {}", to_string(impl_->shape),
                     to_string(shape)));
  return slice(0, shape);
}

Tensor Tensor::slice(std::int64_t first, const Shape& shape, std::int64_t spare_rows) const {
  const std::int64_t spare = spare_rows > 0 ? spare_rows * shape.back() : 0;
  if (first < 0 || first + element_count(shape) + spare > size())
    fail(fmt::format("a slice {} at element {} lies outside a tensor of shape {}", to_string(shape),
                     first, to_string(impl_->shape)));
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = impl_->storage;
  impl->offset = impl_->offset + static_cast<std::size_t>(first) * size_of(impl_->dtype);
  impl->shape = shape;
  impl->spare_rows = spare_rows;
  impl->dtype = impl_->dtype;
  return Tensor(std::move(impl));
}

Tensor Tensor::with_spare_rows() const {
  Tensor all = slice(0, shape());
  all.impl_->shape.front() += impl_->spare_rows;
  return all;
}

std::vector<double> Tensor::to_host() const {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(size()));
  std::vector<std::byte> raw(bytes());
  copy_bytes_to(raw);
  if (dtype() == DType::i32) {
    for (std::size_t i = 0; i < raw.size(); i += sizeof(std::int32_t)) {
      std::int32_t id = 0;
      std::memcpy(&id, raw.data() + i, sizeof id);
      values.push_back(id);
    }
    return values;
  }
  dispatch_floating(dtype(), [&]<class T>() {
    for (std::size_t i = 0; i < raw.size(); i += sizeof(T)) {
      T element;
      std::memcpy(&element, raw.data() + i, sizeof element);
      values.push_back(static_cast<double>(static_cast<cpu::Accumulator<T>>(element)));
    }
  });
  return values;
}

double Tensor::item(std::int64_t index) const {
  return slice(index, {1}).to_host().front();
}

void Tensor::copy_bytes_to(std::span<std::byte> out) const {
  check(out.size() == bytes(), "a host buffer differs in size from the tensor it is read from");
  auto& runtime = device()->runtime();
  runtime.copy_to_host(out.data(), view().address, out.size(), stream());
  runtime.synchronize(stream());
}

void Tensor::copy_bytes_from(std::span<const std::byte> in) const {
  check(in.size() == bytes(), "a host buffer differs in size from the tensor it is written to");
  auto& runtime = device()->runtime();
  runtime.copy_from_host(view().address, in.data(), in.size(), stream());
  runtime.synchronize(stream());
}

void Tensor::fill_zero() const {
  device()->runtime().fill_zero(view().address, bytes(), stream());
}

bool Tensor::requires_grad() const {
  return impl_ != nullptr && impl_->requires_grad;
}

Tensor& Tensor::set_requires_grad(bool value) {
  check(impl_->producer == nullptr, "only a leaf can be told whether it needs a gradient");
  impl_->requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const {
  return impl_->gradient.filled ? impl_->gradient.tensor : Tensor();
}

}  // namespace sluice
