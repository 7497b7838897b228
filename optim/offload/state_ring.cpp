#include "optim/offload/state_ring.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {
namespace {

constexpr std::size_t never = static_cast<std::size_t>(-1);

std::size_t bytes_of(const StateRing::Item& item) {
  std::size_t bytes = 0;
  for (const Tensor& part : item)
    bytes += part.bytes();
  return bytes;
}

}  // namespace

StateRing::StateRing(const DevicePtr& device, std::vector<Item> items, int buffers,
                     std::vector<Speculation> speculative)
    : device_(device),
      items_(std::move(items)),
      speculative_(std::move(speculative)),
      order_(items_.size()),
      last_turn_(items_.size(), never) {
  check(buffers > 0, "a ring needs at least one buffer");
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  Runtime& runtime = device->runtime();
  to_device_ = runtime.make_stream();
  to_host_ = runtime.make_stream();
  std::size_t largest = 0;
  for (const Item& item : items_)
    largest = std::max(largest, bytes_of(item));
  const MemoryScope scope(*device, MemoryUse::staging);
  for (int i = 0; i < buffers; ++i) {
    buffers_.push_back(
        {.memory = Tensor::empty(device, {static_cast<std::int64_t>(largest)}, DType::u8),
         .arrived = runtime.make_event(),
         .updated = runtime.make_event(),
         .drained = runtime.make_event(),
         .saved = runtime.make_event()});
    // The allocator may have reused memory that earlier work in the compute stream still uses.
    runtime.record(buffers_.back().drained, device->stream());
  }
}

StateRing::~StateRing() {
  try {
    synchronize();
  } catch (const Error&) {  // the code that first saw the device fail has reported it
    return;
  }
}

void StateRing::fetch() {
  Runtime& runtime = device_->runtime();
  const std::size_t turn = turn_ + fetched_ - taken_;
  const std::size_t item = order_[fetched_];
  Buffer& buffer = buffer_of(turn);
  runtime.wait(to_device_, buffer.drained);
  // If the round is short, the item may still be on its way to the host from another buffer.
  if (last_turn_[item] != never) runtime.wait(to_device_, buffer_of(last_turn_[item]).drained);
  if (speculative(fetched_)) save_weights(item);
  const Recorded span(timeline_, "fetch", Timeline::Lane::to_device, to_device_);
  std::byte* at = buffer.memory.view().address;
  for (const Tensor& part : items_[item]) {
    runtime.copy_from_host(at, part.view().address, part.bytes(), to_device_);
    moved_.to_device += part.bytes();
    at += part.bytes();
  }
  if (fetched_ >= items_.size()) restore_weights(item);
  runtime.record(buffer.arrived, to_device_);
  if (speculative(fetched_)) runtime.record(buffer.saved, to_host_);
  ++fetched_;
}

/// Needs no event: the last update of the weights was waited for, or its item was drained on
/// `to_host_`, the stream used here.
void StateRing::save_weights(std::size_t item) {
  const auto& [next, weights, saved] = speculative_[item];
  const Recorded span(timeline_, "save", Timeline::Lane::to_host, to_host_);
  copy_to_host(saved, weights.address);
}

void StateRing::restore_weights(std::size_t item) {
  const auto& [next, weights, saved] = speculative_[item];
  device_->runtime().copy_from_host(weights.address, saved.view().address, saved.bytes(),
                                    to_device_);
  moved_.to_device += saved.bytes();
}

void StateRing::copy_to_host(const Tensor& to, const std::byte* from) {
  // A plan (device `meta`) has no host memory to write to.
  if (device_->device().kind != DeviceKind::meta)
    device_->runtime().copy_to_host(to.view().address, from, to.bytes(), to_host_);
  moved_.to_host += to.bytes();
}

void StateRing::prefetch() {
  while (fetched_ < order_.size() && fetched_ - taken_ < buffers_.size())
    fetch();
}

bool StateRing::on_its_way() const {
  return fetched_ > taken_ && !device_->runtime().reached(buffer_of(turn_).arrived);
}

std::vector<std::byte*> StateRing::take() {
  if (fetched_ == taken_) fetch();
  Buffer& buffer = buffer_of(turn_);
  {
    const Recorded span(timeline_, "stall", Timeline::Lane::compute, device_->stream());
    device_->runtime().wait(device_->stream(), buffer.arrived);
    if (speculative(taken_)) device_->runtime().wait(device_->stream(), buffer.saved);
  }
  std::vector<std::byte*> parts;
  std::byte* at = buffer.memory.view().address;
  for (const Tensor& part : items_[order_[taken_]]) {
    parts.push_back(at);
    at += part.bytes();
  }
  return parts;
}

void StateRing::done() {
  Runtime& runtime = device_->runtime();
  const std::size_t item = order_[taken_];
  Buffer& buffer = buffer_of(turn_);
  runtime.record(buffer.updated, device_->stream());
  runtime.wait(to_host_, buffer.updated);
  {
    const Recorded span(timeline_, "drain", Timeline::Lane::to_host, to_host_);
    const std::byte* at = buffer.memory.view().address;
    for (const Tensor& part : item < speculative_.size() ? speculative_[item].next : items_[item]) {
      copy_to_host(part, at);
      at += part.bytes();
    }
  }
  runtime.record(buffer.drained, to_host_);
  last_turn_[item] = turn_;
  ++taken_;
  ++turn_;
  // If only the speculative items have been taken, take_back() may append more.
  if (finished() && taken_ > speculative_.size()) last_moved_ = moved_;
  prefetch();
}

void StateRing::rewind() {
  check(taken_ == 0 || finished(), "a round of updates was begun before the last one was done");
  if (taken_ == 0) return;
  begin();
}

void StateRing::begin() {
  fetched_ = taken_ = 0;
  order_.resize(items_.size());
  last_moved_ = std::exchange(moved_, {});
}

void StateRing::commit() {
  for (std::size_t item = 0; item < speculative_.size(); ++item)
    items_[item].swap(speculative_[item].next);
}

void StateRing::take_back() {
  check(taken_ >= speculative_.size(), "what has not been updated cannot be taken back");
  for (std::size_t item = speculative_.size(); item > 0; --item)
    order_.push_back(item - 1);
  prefetch();
}

void StateRing::roll_back() {
  check(taken_ <= speculative_.size(), "a round was given up after updates that cannot be undone");
  if (taken_ == 0) return;
  synchronize();
  for (std::size_t item = 0; item < taken_; ++item)
    restore_weights(item);
  device_->runtime().synchronize(to_device_);
  begin();
}

void StateRing::forget() {
  check(taken_ == 0 || finished(), "state was asked for while it was being updated");
  if (taken_ == 0) fetched_ = 0;
}

void StateRing::synchronize() {
  device_->runtime().synchronize(to_device_);
  device_->runtime().synchronize(to_host_);
}

}  // namespace sluice
