#include "tests/support/gradcheck.h"

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/base/dtype.h"

namespace sluice::test {

Values random_values(std::int64_t count, std::uint64_t seed, double scale) {
  std::mt19937_64 engine(seed);
  Values values(static_cast<std::size_t>(count));
  for (auto& value : values)
    value = (static_cast<double>(engine() >> 11) * 0x1p-52 - 1.0) * scale;
  return values;
}

double relative_l2(const Values& actual, const Values& expected) {
  if (actual.size() != expected.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-12;
    case DType::f32:
      return 1e-5;
    case DType::bf16:
      return 4e-3;
    case DType::f16:
      return 1e-3;
    case DType::i32:
    case DType::i16:
    case DType::u8:
    case DType::i8:
      break;
  }
  return 0;
}

void Array::set(const Values& values) {
  dispatch_floating(dtype_, [&]<class T>() {
    for (std::size_t i = 0; i < count_; ++i) {
      if constexpr (sizeof(T) == 2)
        data<T>()[i] = T(static_cast<float>(values[i]));
      else
        data<T>()[i] = static_cast<T>(values[i]);
    }
  });
}

Values Array::values() const {
  Values result(count_);
  dispatch_floating(dtype_, [&]<class T>() {
    for (std::size_t i = 0; i < count_; ++i) {
      T element;
      std::memcpy(&element, bytes_.data() + i * sizeof(T), sizeof(T));
      if constexpr (sizeof(T) == 2)
        result[i] = static_cast<float>(element);
      else
        result[i] = static_cast<double>(element);
    }
  });
  return result;
}

}  // namespace sluice::test
