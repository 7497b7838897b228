#include "kernels/adamw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "kernels/base/dynamic_map.h"
#include "kernels/base/fused.h"
#include "kernels/base/stochastic_rounding.h"
#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

/// Coefficients of one update, in the master's type.
template <class A>
struct Coefficients {
  A beta1, beta2, scale, epsilon, keep, rate, root_correction;

  Coefficients(const AdamW& op, A gradient_scale)
      : beta1(static_cast<A>(op.beta1)),
        beta2(static_cast<A>(op.beta2)),
        scale(gradient_scale),
        epsilon(static_cast<A>(op.epsilon)),
        keep(static_cast<A>(fused(-op.rate, op.weight_decay, 1.0))),
        rate(static_cast<A>(op.rate / op.correction1)),
        root_correction(static_cast<A>(1 / std::sqrt(op.correction2))) {}
};

/// Moments in arrays of floating-point numbers.
template <class M, class V>
struct PlainMoments {
  static constexpr bool rounded = std::is_same_v<M, BFloat16> || std::is_same_v<V, BFloat16>;
  M* first;
  V* second;

  PlainMoments from(std::int64_t i) const { return {first + i, second + i}; }
};

template <class T, class A>
inline void store_moment(T& to, A value, [[maybe_unused]] std::uint32_t random) {
  if constexpr (std::is_same_v<T, BFloat16>)
    to.bits = round_stochastically(value, static_cast<std::uint16_t>(random)).bits;
  else
    to = value;
}

/// One pass over memory: reads everything that an element needs once and writes it once. `element`
/// is the position of the first element in the parameter space.
template <class Master, class M, class V, class G, class A = typename Master::Type>
void update(Master weights, PlainMoments<M, V> moments, const G* grad, std::int64_t count,
            const Coefficients<A> c, [[maybe_unused]] const RoundingBits random_bits,
            [[maybe_unused]] std::int64_t element) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const A g = static_cast<A>(grad[i]) * c.scale;
    const A m = fused(c.beta1, static_cast<A>(moments.first[i]), (A(1) - c.beta1) * g);
    const A v = fused(c.beta2, static_cast<A>(moments.second[i]), (A(1) - c.beta2) * g * g);
    std::uint32_t random = 0;
    if constexpr (moments.rounded) random = random_bits(element, static_cast<std::uint32_t>(i));
    store_moment(moments.first[i], m, random);
    store_moment(moments.second[i], v, random >> 16);
    weights.store(i, fused(weights.load(i), c.keep,
                           -c.rate * m / fused(std::sqrt(v), c.root_correction, c.epsilon)));
  }
}

/// The value of each code of a map.
template <class Map>
constexpr std::array<float, 256> values_of_codes() {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code)
    values[code] = Map::decode(static_cast<std::uint8_t>(code));
  return values;
}

inline std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
}

/// Factor that scales a block's values to at most 1. 0 if the block's scale is 0, so small that its
/// inverse would overflow, or not finite.
inline float inverse_of(float scale) {
  return scale >= FLT_MIN ? 1 / scale : 0.0f;
}

/// Moments as codes, and the scales of their blocks.
struct CodedMoments {
  std::uint8_t* first;
  std::uint8_t* second;
  float* first_scale;
  float* second_scale;
};

/// Updates one block, with its moments as floats in between. Bytes have loops of their own: the
/// narrowest type of a loop sets how many elements it takes at once, and 64 exceed the registers.
template <class Master, class G>
void update_block(Master weights, CodedMoments moments, const G* grad, std::int64_t count,
                  const Coefficients<float> c, const RoundingBits random_bits,
                  std::int64_t element) {
  static constexpr auto first_values = values_of_codes<SignedMap>();
  static constexpr auto root_values = values_of_codes<PositiveMap>();
  float first[AdamW::block], roots[AdamW::block];
  for (std::int64_t i = 0; i < count; ++i) {
    first[i] = first_values[moments.first[i]];
    roots[i] = root_values[moments.second[i]];
  }
  const float old_first = *moments.first_scale, old_second = *moments.second_scale;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = static_cast<float>(grad[i]) * c.scale;
    const float old_root = roots[i] * old_second;
    const float m = fused(c.beta1, first[i] * old_first, (1.0f - c.beta1) * g);
    const float root = std::sqrt(fused(c.beta2, old_root * old_root, (1.0f - c.beta2) * g * g));
    weights.store(
        i, fused(weights.load(i), c.keep, -c.rate * m / fused(root, c.root_correction, c.epsilon)));
    first[i] = m;
    roots[i] = root;
  }
  // Magnitudes are ordered as their bits are, with infinities and NaN above all others.
  std::uint32_t first_top = 0, second_top = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    first_top = std::max(first_top, magnitude_bits(first[i]));
    second_top = std::max(second_top, magnitude_bits(roots[i]));
  }
  const float first_scale = std::bit_cast<float>(first_top);
  const float second_scale = std::bit_cast<float>(second_top);
  *moments.first_scale = first_scale;
  *moments.second_scale = second_scale;
  const float first_inverse = inverse_of(first_scale), second_inverse = inverse_of(second_scale);
  std::uint32_t first_codes[AdamW::block], second_codes[AdamW::block];
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t random = random_bits(element, static_cast<std::uint32_t>(i));
    first_codes[i] = SignedMap::encode(first[i] * first_inverse, random & 0xFFFFu);
    second_codes[i] = PositiveMap::encode(roots[i] * second_inverse, random >> 16);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    moments.first[i] = static_cast<std::uint8_t>(first_codes[i]);
    moments.second[i] = static_cast<std::uint8_t>(second_codes[i]);
  }
}

constexpr std::int64_t grain = std::int64_t{1} << 16;  ///< elements per task

template <class G, class M, class V, class Master, class A>
void update_plain(const AdamW& op, Master weights, const Coefficients<A> c) {
  const PlainMoments<M, V> moments{op.first_moment.data<M>(), op.second_moment.data<V>()};
  const G* grad = op.grad.data<G>();
  const RoundingBits random_bits(op.rounding_key);
  const std::int64_t element = op.first_element;
  parallel_ranges(op.grad.size(), grain, [=](std::int64_t begin, std::int64_t end) {
    update(weights.from(begin), moments.from(begin), grad + begin, end - begin, c, random_bits,
           element + begin);
  });
}

template <class G, class Master>
void update_coded(const AdamW& op, Master weights, const Coefficients<float> c) {
  const CodedMoments moments{op.first_moment.data<std::uint8_t>(),
                             op.second_moment.data<std::uint8_t>(), op.first_scale.data<float>(),
                             op.second_scale.data<float>()};
  const G* grad = op.grad.data<G>();
  const RoundingBits random_bits(op.rounding_key);
  const std::int64_t element = op.first_element, row = op.row_length;
  const std::int64_t row_blocks = (row + AdamW::block - 1) / AdamW::block;
  parallel_ranges(
      op.first_scale.size(), grain / AdamW::block, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) {
          const std::int64_t in_row = block % row_blocks * AdamW::block;
          const std::int64_t at = block / row_blocks * row + in_row;
          update_block(weights.from(at),
                       CodedMoments{moments.first + at, moments.second + at,
                                    moments.first_scale + block, moments.second_scale + block},
                       grad + at, std::min(AdamW::block, row - in_row), c, random_bits,
                       element + at);
        }
      });
}

template <class Master, class A = typename Master::Type>
void update_all(const AdamW& op, Master weights) {
  const A scale = op.gradient_scale ? *op.gradient_scale.data<A>() : A(1);
  if (!std::isfinite(scale)) return;
  const Coefficients<A> c(op, scale);
  if constexpr (std::is_same_v<A, double>) {
    update_plain<double, double, double>(op, weights, c);
  } else {
    const auto with_grad = [&]<class G>() {
      if (op.first_moment.dtype == DType::f32) return update_plain<G, float, float>(op, weights, c);
      if (op.first_moment.dtype == DType::u8) return update_coded<G>(op, weights, c);
      if (op.second_moment.dtype == DType::f32)
        return update_plain<G, BFloat16, float>(op, weights, c);
      update_plain<G, BFloat16, BFloat16>(op, weights, c);
    };
    if (op.grad.dtype == DType::f32) return with_grad.template operator()<float>();
    with_grad.template operator()<BFloat16>();
  }
}

bool one_of(DType dtype, std::initializer_list<DType> list) {
  for (const DType allowed : list)
    if (dtype == allowed) return true;
  return false;
}

void check_sizes(const AdamW& op) {
  check(op.first_moment && op.second_moment && op.grad, "AdamW needs two moments and a gradient");
  for (const View& view :
       {op.master, op.first_moment, op.second_moment, op.working, op.remainder}) {
    check(!view || view.size() == op.grad.size(), "the arrays of an AdamW update differ in size");
  }
  check(!op.gradient_scale || op.gradient_scale.size() == 1, "a gradient scale is one number");
}

void check_weights(const AdamW& op) {
  if (op.remainder) {
    check(!op.master && op.working && op.working.dtype == DType::bf16 &&
              op.remainder.dtype == DType::i16,
          "a split master weight is a bf16 working weight and an i16 remainder");
    return;
  }
  check(static_cast<bool>(op.master), "AdamW needs master weights, whole or split");
  check(one_of(op.master.dtype, {DType::f32, DType::f64}), "master weights are f32 or f64");
  check(!op.working || one_of(op.working.dtype, {DType::f32, DType::bf16, DType::f16}),
        "working weights are f32, bf16 or f16");
}

void check_scales(const AdamW& op) {
  check(op.row_length > 0 && op.grad.size() % op.row_length == 0,
        "u8 moments need the length of a row, and whole rows");
  const std::int64_t blocks =
      op.grad.size() / op.row_length * ((op.row_length + AdamW::block - 1) / AdamW::block);
  for (const View& scale : {op.first_scale, op.second_scale})
    check(scale && scale.dtype == DType::f32 && scale.size() == blocks,
          "u8 moments need an f32 scale for each block of 256 elements of a row");
}

}  // namespace

// The check of a layout serves both devices.
void check_layout(const AdamW& op) {
  check_sizes(op);
  const DType m = op.first_moment.dtype, v = op.second_moment.dtype;
  if (op.master && op.master.dtype == DType::f64) {
    check(m == DType::f64 && v == DType::f64 && op.grad.dtype == DType::f64 && !op.remainder &&
              (!op.working || op.working.dtype == DType::f64),
          "f64 master weights are updated in f64 alone");
  } else {
    check_weights(op);
    const bool known = (m == DType::f32 && v == DType::f32) ||
                       (m == DType::bf16 && one_of(v, {DType::f32, DType::bf16})) ||
                       (m == DType::u8 && v == DType::u8);
    if (!known)
      fail("AdamW has no moments in " + std::string(name_of(m)) + " and " +
           std::string(name_of(v)) +
           ", only in f32 and f32, bf16 and f32, bf16 and bf16, or u8 and u8");
    check(one_of(op.grad.dtype, {DType::f32, DType::bf16}), "gradients of AdamW are f32 or bf16");
  }
  if (m == DType::u8) return check_scales(op);
  check(!op.first_scale && !op.second_scale, "only u8 moments have scales");
}

void launch_cpu(const AdamW& op) {
  check_layout(op);
  if (op.remainder)
    return update_all(op, HalvedMaster{.working = op.working.data<BFloat16>(),
                                       .remainder = op.remainder.data<std::int16_t>()});
  dispatch_master(op.master.dtype, op.working, [&]<class A, class W>() {
    update_all(op, WholeMaster<A, W>{.master = op.master.data<A>(),
                                     .working = op.working ? op.working.data<W>() : nullptr});
  });
}

void launch_cpu(const AdamWBatch& op) {
  for (const AdamW& update : op.updates)
    launch_cpu(update);
}

}  // namespace sluice
