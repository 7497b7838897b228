#include "apps/train/loss_record.h"

#include <algorithm>

namespace sluice {

LossRecord::LossRecord(const DevicePtr& device, std::int64_t micro_batches, DType dtype)
    : device_(device),
      dtype_(dtype),
      bytes_(static_cast<std::size_t>(micro_batches) * size_of(dtype)),
      values_(device, bytes_) {
  check(dtype == DType::f32 || dtype == DType::f64, "losses are f32 or f64");
  clear();
}

void LossRecord::clear() {
  std::fill_n(values_.data(), bytes_, std::byte{0});
}

void LossRecord::keep(std::int64_t micro_batch, const Tensor& loss) {
  device_->runtime().copy_to_host(
      values_.data() + static_cast<std::size_t>(micro_batch) * size_of(dtype_), loss.view().address,
      size_of(dtype_), loss.stream());
}

std::vector<double> LossRecord::values(std::int64_t count) const {
  device_->runtime().synchronize(device_->stream());
  const auto read = [&]<class T>(const T* first) {
    return std::vector<double>(first, first + count);
  };
  return dtype_ == DType::f32 ? read(reinterpret_cast<const float*>(values_.data()))
                              : read(reinterpret_cast<const double*>(values_.data()));
}

}  // namespace sluice
