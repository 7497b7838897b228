#include "optim/parameter_space.h"

#include <algorithm>

#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/base/run.h"
#include "kernels/clip.h"
#include "kernels/elementwise.h"
#include "kernels/squared_norm.h"

namespace sluice {

ParameterSpace::ParameterSpace(const std::vector<Parameter>& parameters, const DevicePtr& device,
                               DType working, Use use) {
  for (const Parameter& parameter : parameters) {
    const std::int64_t elements = element_count(parameter.shape);
    slots_.push_back({parameter.name, parameter.shape, size_, elements, parameter.shape.size() >= 2,
                      parameter.initial, parameter.tensor});
    const std::int64_t padded = (elements + slot_alignment - 1) / slot_alignment * slot_alignment;
    if (!runs_.empty() && runs_.back().decay == slots_.back().decay)
      runs_.back().size += padded;
    else
      runs_.push_back({size_, padded, slots_.back().decay});
    size_ += padded;
    count_ += elements;
  }
  working_ = Tensor::zeros(device, {size_}, working);
  const DType master = accumulator_of(working);
  master_ = working_;
  if (use == Use::training) {
    if (master != working) master_ = Tensor::zeros(device, {size_}, master);
    gradient_ = Tensor::zeros(device, {size_}, master);
    norm_partials_ =
        Tensor::empty(device, {(size_ + SquaredNorm::block - 1) / SquaredNorm::block}, DType::f64);
    norm_ = Tensor::empty(device, {1}, DType::f64);
    clip_factor_ = Tensor::empty(device, {1}, master);
  }
  for (const Slot& slot : slots_) {
    *slot.tensor = working_.slice(slot.offset, slot.shape);
    if (use == Use::inference) continue;
    slot.tensor->set_requires_grad(true);
    set_gradient_buffer(*slot.tensor, gradient_.slice(slot.offset, slot.shape));
  }
}

const ParameterSpace::Slot* ParameterSpace::find(const std::string& name) const {
  const auto found = std::ranges::find(slots_, name, &Slot::name);
  return found == slots_.end() ? nullptr : &*found;
}

void ParameterSpace::initialize(std::uint64_t seed) {
  constexpr std::int64_t piece = 1 << 16;
  std::vector<float> values;
  std::vector<double> wide;
  for (const Slot& slot : slots_) {
    const std::uint64_t key = random_key(seed, slot.name);
    for (std::int64_t first = 0; first < slot.size; first += piece) {
      const std::int64_t count = std::min(piece, slot.size - first);
      values.assign(static_cast<std::size_t>(count), static_cast<float>(slot.initial.value));
      if (slot.initial.standard_deviation > 0)
        fill_normal(key, static_cast<std::uint64_t>(first), slot.initial.standard_deviation,
                    values);
      const Tensor target = master_.slice(slot.offset + first, {count});
      if (master_.dtype() == DType::f32) {
        target.copy_bytes_from(std::as_bytes(std::span(values)));
      } else {
        wide.assign(values.begin(), values.end());
        const Tensor converted =
            Tensor::from_host(target.device(), target.shape(), target.dtype(), wide);
        run(Cast{.out = target.view(), .in = converted.view()}, target.stream());
      }
    }
  }
  derive_working();
}

void ParameterSpace::derive_working() {
  if (has_master())
    run(Cast{.out = working_.view(), .in = master_.view(), .half_away = true}, working_.stream());
}

void ParameterSpace::forget_gradients() {
  for (const Slot& slot : slots_)
    forget_gradient(*slot.tensor);
}

void ParameterSpace::settle_gradients() {
  for (const Slot& slot : slots_)
    settle_gradient(*slot.tensor);
}

const Tensor& ParameterSpace::clip_gradients(double limit, double loss_scale) {
  const Stream stream = gradient_.stream();
  run(SquaredNorm{.partial = norm_partials_.view(), .in = gradient_.view()}, stream);
  run(ClipFactor{.norm = norm_.view(),
                 .factor = clip_factor_.view(),
                 .partial = norm_partials_.view(),
                 .limit = limit,
                 .loss_scale = loss_scale},
      stream);
  return clip_factor_;
}

}  // namespace sluice
