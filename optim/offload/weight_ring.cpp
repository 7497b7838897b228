#include "optim/offload/weight_ring.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {

WeightRing::WeightRing(ParameterSpace& space) : space_(space), device_(space.device()) {
  Runtime& runtime = device_->runtime();
  to_device_ = runtime.make_stream();
  to_host_ = runtime.make_stream();
  for (WeightPlace& place : weights_) {
    place.arrived = runtime.make_event();
    place.released = runtime.make_event();
    // The space has zeroed the place in the compute stream.
    runtime.record(place.released, device_->stream());
  }
  for (GradientPlace& place : gradients_) {
    place.complete = runtime.make_event();
    place.drained = runtime.make_event();
  }
  scale_ready_ = runtime.make_event();
  scale_arrived_ = runtime.make_event();
  const DevicePtr& host = space.options().host.pinned;
  const MemoryScope scope(*host, MemoryUse::staging);
  scale_memory_ = Tensor::zeros(host, {1}, DType::f64);  // large enough for f32, too
  bool first = true;
  for (const auto& slot : space.slots()) {
    if (slot.residency != Residency::host) continue;
    if (std::exchange(first, false)) lowest_ = slot.section;
    highest_ = slot.section;
  }
}

WeightRing::~WeightRing() {
  try {
    synchronize();
  } catch (const Error&) {  // the code that first saw the device fail has reported it
    return;
  }
}

WeightRing::WeightPlace& WeightRing::place_of(int section) {
  return weights_[space_.working().visitor(section)->place];
}

bool WeightRing::holds(int section) const {
  const WeightPlace& place = weights_[space_.working().visitor(section)->place];
  return place.section == section && place.version == space_.version(section);
}

void WeightRing::stall(Event event) {
  const Recorded span(timeline_, "stall", Timeline::Lane::compute, device_->stream());
  device_->runtime().wait(device_->stream(), event);
}

void WeightRing::enter(int section) {
  if (space_.working().visitor(section) == nullptr) return;
  const bool here = holds(section);
  if (here && current_ == section) return;
  // Everything that reads the weights of the section before is queued by now.
  if (current_) device_->runtime().record(place_of(*current_).released, device_->stream());
  if (section != current_)
    ascending_ = section == lowest_ || (section != highest_ && section > current_.value_or(-1));
  current_ = section;
  if (!here) fetch(section);
  stall(place_of(section).arrived);
}

void WeightRing::prefetch() {
  if (!current_) return;
  const int next = *current_ + (ascending_ ? 1 : -1);
  if (space_.working().visitor(next) != nullptr && !holds(next)) fetch(next);
}

void WeightRing::fetch(int section) {
  Runtime& runtime = device_->runtime();
  const FlatBuffer::Visitor& weights = *space_.working().visitor(section);
  WeightPlace& place = place_of(section);
  runtime.wait(to_device_, place.released);
  {
    const Recorded span(timeline_, "weights", Timeline::Lane::to_device, to_device_);
    runtime.copy_from_host(weights.visiting.view().address, weights.home.view().address,
                           weights.home.bytes(), to_device_);
  }
  runtime.record(place.arrived, to_device_);
  moved_.to_device += weights.home.bytes();
  place.section = section;
  place.version = space_.version(section);
}

void WeightRing::begin_gradients(int section) {
  if (const auto* gradients = space_.gradients().visitor(section); gradients != nullptr)
    stall(gradients_[gradients->place].drained);
}

void WeightRing::drain_gradients(int section) {
  const FlatBuffer::Visitor* const gradients = space_.gradients().visitor(section);
  if (gradients == nullptr) return;
  space_.sum_squares_of(section);
  Runtime& runtime = device_->runtime();
  GradientPlace& place = gradients_[gradients->place];
  runtime.record(place.complete, device_->stream());
  runtime.wait(to_host_, place.complete);
  {
    const Recorded span(timeline_, "gradients", Timeline::Lane::to_host, to_host_);
    copy_to_host(gradients->home.view(), gradients->visiting.view());
  }
  runtime.record(place.drained, to_host_);
  moved_.to_host += gradients->home.bytes();
}

/// Does nothing on `meta` (a plan), which has no host memory to write to.
void WeightRing::copy_to_host(const View& to, const View& from) {
  if (device_->device().kind != DeviceKind::meta)
    device_->runtime().copy_to_host(to.address, from.address,
                                    static_cast<std::size_t>(from.size()) * size_of(from.dtype),
                                    to_host_);
}

void WeightRing::send_scale(const View& scale) {
  Runtime& runtime = device_->runtime();
  runtime.record(scale_ready_, device_->stream());
  runtime.wait(to_host_, scale_ready_);
  scale_ = scale;
  if (scale) {
    scale_.address = scale_memory_.view().address;
    copy_to_host(scale_, scale);
  }
  runtime.record(scale_arrived_, to_host_);
}

View WeightRing::wait_for_gradients() {
  // Gradients go to the host before the scale, on the same stream. No copy may still read weights.
  device_->runtime().synchronize(scale_arrived_);
  device_->runtime().synchronize(to_device_);
  return scale_;
}

void WeightRing::synchronize() {
  device_->runtime().synchronize(to_device_);
  device_->runtime().synchronize(to_host_);
}

}  // namespace sluice
