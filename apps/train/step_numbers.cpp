#include "apps/train/step_numbers.h"

#include <algorithm>
#include <cstring>

namespace sluice {

StepNumbers::StepNumbers(const DevicePtr& device, std::int64_t micro_batches, DType dtype)
    : device_(device),
      dtype_(dtype),
      loss_bytes_(static_cast<std::size_t>(micro_batches) * size_of(dtype)),
      losses_(device, loss_bytes_),
      norm_(device, sizeof(double)),
      complete_(device->runtime().make_event()) {
  check(dtype == DType::f32 || dtype == DType::f64, "losses are f32 or f64");
  clear_losses();
}

void StepNumbers::clear_losses() {
  std::fill_n(losses_.data(), loss_bytes_, std::byte{0});
}

void StepNumbers::keep_loss(std::int64_t micro_batch, const Tensor& loss) {
  device_->runtime().copy_to_host(
      losses_.data() + static_cast<std::size_t>(micro_batch) * size_of(dtype_), loss.view().address,
      size_of(dtype_), loss.stream());
}

void StepNumbers::keep_norm(const Tensor& norm) {
  check(norm.dtype() == DType::f64, "a gradient's norm is f64");
  device_->runtime().copy_to_host(norm_.data(), norm.view().address, sizeof(double), norm.stream());
  device_->runtime().record(complete_, norm.stream());
}

std::vector<double> StepNumbers::losses(std::int64_t count) const {
  device_->runtime().synchronize(complete_);
  const auto read = [&]<class T>(const T* first) {
    return std::vector<double>(first, first + count);
  };
  return dtype_ == DType::f32 ? read(reinterpret_cast<const float*>(losses_.data()))
                              : read(reinterpret_cast<const double*>(losses_.data()));
}

double StepNumbers::norm() const {
  device_->runtime().synchronize(complete_);
  double value = 0;
  std::memcpy(&value, norm_.data(), sizeof value);
  return value;
}

}  // namespace sluice
