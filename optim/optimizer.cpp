#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "kernels/base/run.h"
#include "kernels/elementwise.h"

namespace sluice {

Optimizer::Optimizer(ParameterSpace& space, std::unique_ptr<UpdateRule> rule, int buffers)
    : space_(space),
      rule_(std::move(rule)),
      state_(
          space.chunks(),
          [&](const Chunk& chunk) {
            return rule_->fields(chunk, accumulator_of(space.working().dtype()));
          },
          space.device(), space.options().host) {
  for (std::size_t i = 0; i < space.chunks().size(); ++i)
    if (residency(i) != Residency::device && space.chunks()[i].owned) on_host_.push_back(i);
  if (space.options().host.file)
    make_file_ring(buffers);
  else
    make_ring(buffers);
  make_cpu_updater(buffers);
  if (space.layout().rests()) weight_ring_.emplace(space);
  std::int64_t scratch = 0;
  for (const Chunk& chunk : space.chunks())
    if (chunk.owned) scratch = std::max(scratch, rule_->scratch(chunk));
  if (scratch == 0) return;
  const MemoryScope scope(*space.device(), MemoryUse::state);
  scratch_ = Tensor::empty(space.device(), {scratch}, DType::f64);
}

void Optimizer::make_ring(int buffers) {
  std::vector<StateRing::Item> items;
  std::vector<StateRing::Speculation> speculations;
  for (const std::size_t i : on_host_ | std::views::reverse)
    if (residency(i) == Residency::speculative) {
      speculative_.push_back(i);
      items.push_back(homes(i));
      speculations.push_back(speculation(i));
    }
  for (const std::size_t i : on_host_) {
    if (residency(i) != Residency::streamed) continue;
    // Updates that are redone come at the end of a round, and a round ascends in the space.
    check(speculative_.empty() || i < speculative_.back(),
          "the speculative chunks come after those that merely stream");
    items.push_back(homes(i));
  }
  if (!speculative_.empty()) {
    const MemoryScope scope(*space_.device(), MemoryUse::state);
    speculative_scale_ =
        Tensor::zeros(space_.device(), {1}, accumulator_of(space_.working().dtype()));
  }
  if (!items.empty())
    ring_.emplace(space_.device(), std::move(items), buffers, std::move(speculations));
}

void Optimizer::make_file_ring(int buffers) {
  std::vector<FileRing::Item> items;
  for (const std::size_t i : on_host_) {
    FileRing::Item& item = items.emplace_back();
    if (space_.has_master()) item.push_back(space_.master()->region(i));
    if (state_.has(i)) item.push_back(state_.region(i));
  }
  if (items.empty()) return;
  const HostMemory& host = space_.options().host;
  // On a CPU the chunks count as streamed, and the buffers belong to the device. On a GPU the CPU
  // updates them, in host memory.
  const bool visits = residency(on_host_.front()) == Residency::streamed;
  file_ring_.emplace(host.file, visits ? space_.device() : host.ordinary, std::move(items),
                     buffers);
}

StateRing::Item Optimizer::homes(std::size_t chunk) const {
  StateRing::Item item;
  if (space_.has_master()) item.push_back(space_.master()->home(chunk));
  if (state_.home(chunk)) item.push_back(state_.home(chunk));
  return item;
}

StateRing::Speculation Optimizer::speculation(std::size_t chunk) const {
  const View weights = working_view(space_.chunks()[chunk]);
  const DevicePtr& host = space_.options().host.pinned;
  const MemoryScope scope(*host, MemoryUse::state);
  StateRing::Speculation kept{.weights = weights,
                              .saved = Tensor::zeros(host, {weights.size()}, weights.dtype)};
  if (space_.has_master()) kept.next.push_back(space_.master()->next_home(chunk));
  if (state_.home(chunk)) kept.next.push_back(state_.next_home(chunk));
  return kept;
}

void Optimizer::make_cpu_updater(int buffers) {
  const bool whole_master =
      space_.has_master() && !splits_master(space_.options().layout, space_.working().dtype());
  std::vector<CpuUpdater::Item> items;
  for (const std::size_t i : on_host_) {
    if (residency(i) != Residency::cpu) continue;
    const Chunk& chunk = space_.chunks()[i];
    on_cpu_.push_back(i);
    items.push_back({.gradient = space_.gradient_view(chunk),
                     .weights = working_view(chunk),
                     .reads_weights = !whole_master});
  }
  if (!items.empty())
    cpu_updater_.emplace(space_.device(), space_.options().host.pinned, std::move(items), buffers);
}

View Optimizer::working_view(const Chunk& chunk) const {
  return space_.working().slice(chunk.offset, {chunk.size}).view();
}

void Optimizer::set_timeline(Timeline* timeline) {
  timeline_ = timeline;
  if (ring_) ring_->set_timeline(timeline);
  if (cpu_updater_) cpu_updater_->set_timeline(timeline);
  if (weight_ring_) weight_ring_->set_timeline(timeline);
}

StreamedBytes Optimizer::moved() const {
  StreamedBytes bytes = ring_ ? ring_->moved() : StreamedBytes{};
  if (cpu_updater_) bytes += cpu_updater_->moved();
  if (file_ring_) bytes += file_ring_->moved();
  return bytes;
}

void Optimizer::step(double rate, const Tensor& gradient_scale) {
  finish();
  check(!speculating_ || rate == step_.rate, "a step was speculated on with another rate");
  ++updates_;
  scale_ = gradient_scale;
  step_ = {.count = updates_,
           .rate = rate,
           .gradient_scale = gradient_scale ? gradient_scale.view() : View{}};
  {
    const Recorded span(timeline_, "update", Timeline::Lane::compute, space_.working().stream());
    std::vector<ChunkViews> resident;
    for (std::size_t i = 0; i < space_.chunks().size(); ++i)
      if (space_.chunks()[i].owned && residency(i) == Residency::device)
        resident.push_back(device_views(i, {}));
    rule_->update(resident, step_, space_.working().stream());
  }
  if (on_host_.empty()) return;
  pending_ = true;
  next_ = next_on_cpu_ = 0;
  if (speculating_) {
    resolve_speculation(gradient_scale);
  } else if (ring_) {
    ring_->rewind();
    ring_->prefetch();
    for (const std::size_t chunk : speculative_)
      update_in_ring(chunk);
    commit();
  }
  if (file_ring_) {
    file_ring_->rewind();
    file_ring_->prefetch();
  }
  if (cpu_updater_ && pending_) cpu_updater_->round(step_.gradient_scale);
  if (weight_ring_) weight_ring_->send_scale(step_.gradient_scale);
}

void Optimizer::roll_back() {
  --updates_;
  pending_ = again_ = false;
  if (!speculative_.empty()) ring_->roll_back();
}

void Optimizer::prefetch() {
  if (pending_) return;
  const auto begin = [](auto& ring) {
    ring.rewind();
    ring.prefetch();
  };
  if (ring_) begin(*ring_);
  if (file_ring_) begin(*file_ring_);
}

void Optimizer::speculate(double rate, double gradient_scale) {
  if (speculative_.empty()) return;
  check(!speculating_, "what was speculated on has neither been stepped nor abandoned");
  finish();
  prefetch();
  const double factor = speculative_scale_.dtype() == DType::f64
                            ? gradient_scale
                            : static_cast<double>(static_cast<float>(gradient_scale));
  if (factor != speculative_factor_)
    run(Fill{.out = speculative_scale_.view(), .value = factor}, speculative_scale_.stream());
  speculative_factor_ = factor;
  step_ = {.count = updates_ + 1, .rate = rate, .gradient_scale = speculative_scale_.view()};
  speculating_ = true;
  next_speculative_ = 0;
}

void Optimizer::speculate_down_to(std::int64_t begin) {
  for (; speculating_ && next_speculative_ < speculative_.size(); ++next_speculative_) {
    const std::size_t chunk = speculative_[next_speculative_];
    if (space_.chunks()[chunk].offset < begin) return;
    update_in_ring(chunk);
  }
}

void Optimizer::cancel() {
  if (!std::exchange(speculating_, false)) return;
  ring_->roll_back();
  ++undone_;
}

/// Keeps or undoes the speculative updates. Waits until the host knows the gradient scale.
void Optimizer::resolve_speculation(const Tensor& gradient_scale) {
  step_.gradient_scale = speculative_scale_.view();
  speculate_down_to(0);
  speculating_ = false;
  step_.gradient_scale = gradient_scale ? gradient_scale.view() : View{};
  const double factor = gradient_scale ? gradient_scale.item() : 1;
  if (factor == speculative_factor_) return commit();
  ++undone_;
  if (std::isfinite(factor)) {
    ring_->take_back();
    again_ = true;
  } else {  // not finite: the step must change nothing
    ring_->roll_back();
    pending_ = false;
  }
}

/// Makes the speculatively updated state the current state.
void Optimizer::commit() {
  if (speculative_.empty()) return;
  ring_->commit();
  for (const std::size_t chunk : speculative_) {
    if (space_.has_master()) space_.master()->move_home(chunk);
    state_.move_home(chunk);
  }
}

void Optimizer::update_through(std::int64_t end) {
  for (; pending_ && next_ < on_host_.size(); ++next_) {
    const std::size_t index = on_host_[next_];
    if (space_.chunks()[index].offset >= end) return;
    if (residency(index) == Residency::cpu) {
      wait_for_cpu(index);
    } else if (residency(index) == Residency::host) {
      update_at_home(index);
    } else if (residency(index) == Residency::streamed || again_) {
      update_on_cpu_meanwhile();
      update_in_ring(index);
    }
  }
  pending_ = false;
  if (std::exchange(again_, false)) commit();
}

void Optimizer::update_in_ring(std::size_t chunk) {
  const auto visiting = file_ring_ ? take_from_file() : ring_->take();
  {
    const Recorded span(timeline_, "update", Timeline::Lane::compute, space_.working().stream());
    const ChunkViews views = device_views(chunk, visiting);
    rule_->update({&views, 1}, step_, space_.working().stream());
  }
  if (file_ring_)
    file_ring_->done();
  else
    ring_->done();
}

/// Waits until the next chunk's state has been read, and returns where it is.
std::vector<std::byte*> Optimizer::take_from_file() {
  // A GPU goes on computing meanwhile.
  const bool stalls = space_.device()->device().kind != DeviceKind::cuda;
  const Recorded span(timeline_, stalls ? "stall" : "file", Timeline::Lane::host,
                      space_.working().stream());
  return file_ring_->take();
}

void Optimizer::finish() {
  update_through(space_.size());
}

void Optimizer::synchronize() {
  finish();
  if (cpu_updater_) cpu_updater_->synchronize();
  if (weight_ring_) weight_ring_->synchronize();
  if (file_ring_) {
    file_ring_->forget();
    file_ring_->synchronize();
  }
  if (!ring_) return;
  ring_->forget();
  ring_->synchronize();
}

namespace {

/// `working`: the weights that the model computes with. `master`: none if these are the master
/// weights.
void set_weights(ChunkViews& views, const View& working, const View& master) {
  if (!master) {
    views.master = working;
    return;
  }
  views.working = working;
  (master.dtype == DType::i16 ? views.remainder : views.master) = master;
}

}  // namespace

/// Lets the CPU update chunks of its own while the ring's next one is on its way. Copies may run in
/// the order in which the host starts them; if it started all of the ring's first, those of the
/// CPU's chunks would come after them, and the GPU would wait for the sum of both.
void Optimizer::update_on_cpu_meanwhile() {
  if (next_on_cpu_ == on_cpu_.size() || !ring_ || !ring_->on_its_way()) return;
  const Recorded span(timeline_, "stall", Timeline::Lane::compute, space_.working().stream());
  while (next_on_cpu_ < on_cpu_.size() && ring_->on_its_way())
    update_next_on_cpu();
}

/// Makes work queued in the compute stream after this call see the chunk's new weights.
void Optimizer::wait_for_cpu(std::size_t chunk) {
  const Recorded span(timeline_, "stall", Timeline::Lane::compute, space_.working().stream());
  const auto item = static_cast<std::size_t>(std::ranges::find(on_cpu_, chunk) - on_cpu_.begin());
  while (next_on_cpu_ <= item)
    update_next_on_cpu();
  cpu_updater_->deliver(item);
}

/// Updates a chunk where its weights, gradient and state rest in host memory.
void Optimizer::update_at_home(std::size_t index) {
  const View scale = weight_ring_->wait_for_gradients();
  const Chunk& chunk = space_.chunks()[index];
  ChunkViews views{.chunk = chunk, .gradient = space_.gradient_view(chunk)};
  update_by_cpu(views, index, space_.working().kept(chunk.offset, {chunk.size}).view(), scale,
                space_.options().host.pinned->stream());
  space_.count_write(chunk.section);
}

/// Updates a chunk's state in host memory, from staged copies of its gradient and weights.
void Optimizer::update_next_on_cpu() {
  const std::size_t index = on_cpu_[next_on_cpu_++];
  const CpuUpdater::Staged at = cpu_updater_->take();
  ChunkViews views{.chunk = space_.chunks()[index], .gradient = at.gradient};
  update_by_cpu(views, index, at.weights, at.scale, cpu_updater_->host_stream());
  cpu_updater_->done();
}

/// Updates a chunk on the CPU, with its state from the file if it rests there.
void Optimizer::update_by_cpu(ChunkViews& views, std::size_t index, const View& working,
                              const View& scale, Stream stream) {
  add_state(views, index, working, file_ring_ ? take_from_file() : std::vector<std::byte*>{});
  UpdateStep step = step_;
  step.gradient_scale = scale;
  {
    const Recorded span(timeline_, "cpu update", Timeline::Lane::host, stream);
    rule_->update({&views, 1}, step, stream);
  }
  if (file_ring_) file_ring_->done();
}

/// Adds the chunk's weights and state. `visiting`: where its state is now; none: at home.
void Optimizer::add_state(ChunkViews& views, std::size_t index, const View& working,
                          const std::vector<std::byte*>& visiting) const {
  std::size_t part = 0;
  const auto at_hand = [&](const ChunkedState& state) {
    return visiting.empty() ? state.views(index) : state.views(index, visiting[part++]);
  };
  set_weights(views, working, space_.has_master() ? at_hand(*space_.master()).front() : View{});
  if (state_.has(index)) views.state = at_hand(state_);
}

ChunkViews Optimizer::device_views(std::size_t index,
                                   const std::vector<std::byte*>& visiting) const {
  const Chunk& chunk = space_.chunks()[index];
  ChunkViews views{.chunk = chunk, .gradient = space_.gradient_view(chunk)};
  add_state(views, index, working_view(chunk), visiting);
  if (scratch_) views.scratch = scratch_.view();
  return views;
}

}  // namespace sluice
