#include "optim/optimizer.h"

#include <algorithm>

namespace sluice {

Optimizer::Optimizer(ParameterSpace& space, std::unique_ptr<UpdateRule> rule, int places)
    : space_(space),
      rule_(std::move(rule)),
      state_(
          space.chunks(),
          [&](const Chunk& chunk) {
            return rule_->fields(chunk, accumulator_of(space.working().dtype()));
          },
          space.device(), space.options().host) {
  std::vector<StateRing::Item> items;
  for (std::size_t i = 0; i < space.chunks().size(); ++i) {
    if (!space.chunks()[i].on_host || !space.chunks()[i].mine) continue;
    StateRing::Item item;
    if (space.has_master()) item.push_back(space.master()->home(i));
    if (state_.home(i)) item.push_back(state_.home(i));
    on_host_.push_back(i);
    items.push_back(std::move(item));
  }
  if (!items.empty()) ring_.emplace(space.device(), std::move(items), places);
  std::int64_t scratch = 0;
  for (const Chunk& chunk : space.chunks())
    if (chunk.mine) scratch = std::max(scratch, rule_->scratch(chunk));
  if (scratch == 0) return;
  const MemoryScope scope(*space.device(), MemoryUse::state);
  scratch_ = Tensor::empty(space.device(), {scratch}, DType::f64);
}

void Optimizer::set_timeline(Timeline* timeline) {
  timeline_ = timeline;
  if (ring_) ring_->set_timeline(timeline);
}

void Optimizer::step(double rate, const Tensor& gradient_scale) {
  finish();
  ++updates_;
  scale_ = gradient_scale;
  step_ = {.count = updates_,
           .rate = rate,
           .gradient_scale = gradient_scale ? gradient_scale.view() : View{}};
  {
    const Recorded span(timeline_, "update", Timeline::Lane::compute, space_.working().stream());
    for (std::size_t i = 0; i < space_.chunks().size(); ++i)
      if (space_.chunks()[i].mine && !space_.chunks()[i].on_host) update(i, {});
  }
  if (!ring_) return;
  ring_->rewind();
  ring_->prefetch();
  pending_ = true;
  next_ = 0;
}

void Optimizer::retract() {
  --updates_;
  pending_ = false;
}

void Optimizer::prefetch() {
  if (!ring_ || pending_) return;
  ring_->rewind();
  ring_->prefetch();
}

void Optimizer::update_through(std::int64_t end) {
  for (; pending_ && next_ < on_host_.size(); ++next_) {
    const std::size_t chunk = on_host_[next_];
    if (space_.chunks()[chunk].offset >= end) return;
    const auto visiting = ring_->take();
    {
      const Recorded span(timeline_, "update", Timeline::Lane::compute, space_.working().stream());
      update(chunk, visiting);
    }
    ring_->done();
  }
  pending_ = false;
}

void Optimizer::finish() {
  update_through(space_.size());
}

void Optimizer::settle() {
  finish();
  if (!ring_) return;
  ring_->forget();
  ring_->settle();
}

void Optimizer::update(std::size_t index, const std::vector<std::byte*>& visiting) {
  const Chunk& chunk = space_.chunks()[index];
  const View working = space_.working().slice(chunk.offset, {chunk.size}).view();
  ChunkViews views{.chunk = chunk, .gradient = space_.gradient_view(chunk)};
  std::size_t part = 0;
  const auto at_hand = [&](const ChunkedState& state) {
    return visiting.empty() ? state.views(index) : state.views(index, visiting[part++]);
  };
  if (!space_.has_master()) {
    views.master = working;
  } else {
    const View weight = at_hand(*space_.master()).front();
    views.working = working;
    (weight.dtype == DType::i16 ? views.remainder : views.master) = weight;
  }
  if (state_.home(index)) views.state = at_hand(state_);
  if (scratch_) views.scratch = scratch_.view();
  rule_->update(views, step_, space_.working().stream());
}

std::vector<StateField> Optimizer::fields(const ParameterSpace::Slot& slot) const {
  std::vector<StateField> fields;
  for (std::size_t i = 0; i < space_.chunks().size(); ++i) {
    const Chunk& chunk = space_.chunks()[i];
    if (chunk.offset + chunk.size <= slot.offset || chunk.offset >= slot.offset + slot.size)
      continue;
    if (!alone(slot)) {  // a number for every element
      fields = state_.fields(i);
      for (StateField& field : fields)
        field.count = slot.size;
      return fields;
    }
    if (fields.empty()) {
      fields = state_.fields(i);
      continue;
    }
    for (std::size_t f = 0; f < fields.size(); ++f)
      fields[f].count += state_.fields(i)[f].count;
  }
  return fields;
}

/// Calls body(chunk, first element of its field, bytes, bytes done before).
template <class Body>
void Optimizer::for_each_piece(const ParameterSpace::Slot& slot, std::size_t field,
                               std::int64_t first, std::size_t bytes, Body&& body) const {
  std::int64_t before = 0;  // elements of the field in the slot's earlier chunks
  std::size_t done = 0;
  for (std::size_t i = 0; i < space_.chunks().size() && done < bytes; ++i) {
    const Chunk& chunk = space_.chunks()[i];
    if (chunk.offset + chunk.size <= slot.offset || chunk.offset >= slot.offset + slot.size)
      continue;
    const StateField& stored = state_.fields(i)[field];
    const auto width = size_of(stored.dtype);
    // Where a chunk holds several slots, its fields have a number for every element.
    const std::int64_t begin = std::max(slot.offset, chunk.offset);
    const std::int64_t end = std::min(slot.offset + slot.size, chunk.offset + chunk.size);
    const std::int64_t start = alone(slot) ? 0 : begin - chunk.offset;
    const std::int64_t count = alone(slot) ? stored.count : end - begin;
    const std::int64_t skip = first + static_cast<std::int64_t>(done / width) - before;
    before += count;
    if (skip >= count) continue;
    const std::size_t part = std::min(bytes - done, static_cast<std::size_t>(count - skip) * width);
    body(i, start + skip, part, done);
    done += part;
  }
  check(done == bytes, "more state was asked for than a parameter has");
}

void Optimizer::read_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                           std::span<std::byte> out) {
  settle();
  for_each_piece(slot, field, first, out.size(), [&](auto chunk, auto at, auto part, auto done) {
    state_.read(chunk, field, at, out.subspan(done, part));
  });
}

void Optimizer::write_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                            std::span<const std::byte> in) {
  settle();
  for_each_piece(slot, field, first, in.size(), [&](auto chunk, auto at, auto part, auto done) {
    state_.write(chunk, field, at, in.subspan(done, part));
  });
}

std::unique_ptr<Optimizer> make_adamw(ParameterSpace& space, const AdamWOptions& options,
                                      int places) {
  return std::make_unique<Optimizer>(space, adamw_rule(options, space.options().layout), places);
}

std::unique_ptr<Optimizer> make_sgd(ParameterSpace& space, const SgdOptions& options, int places) {
  return std::make_unique<Optimizer>(space, sgd_rule(options), places);
}

std::unique_ptr<Optimizer> make_adafactor(ParameterSpace& space, const AdafactorOptions& options) {
  const StateLayout layout = space.options().layout;
  check(space.options().whole_tensors, "Adafactor needs whole tensors");
  check(layout == StateLayout::fp32 || layout == StateLayout::split,
        "Adafactor has no moments of that layout");
  return std::make_unique<Optimizer>(space, adafactor_rule(options));
}

}  // namespace sluice
