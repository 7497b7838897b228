#include "optim/space/parameter_space.h"

#include <algorithm>
#include <utility>

#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/base/half.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "optim/space/initial_values.h"

namespace sluice {
namespace {

constexpr Stream host_stream{{DeviceKind::cpu, 0}, 0};

/// Returns a View of host values for the conversion kernels.
View host_view(std::span<const std::byte> bytes, DType dtype) {
  return {const_cast<std::byte*>(bytes.data()),  // NOLINT: kernels do not write to inputs
          dtype,
          {static_cast<std::int64_t>(bytes.size() / size_of(dtype))}};
}

/// Hashes the name. Random streams of different parameters overlap with negligible probability.
std::int64_t random_offset(const SpaceLayout::Slot& slot) {
  constexpr std::uint64_t aligned_and_positive = 0x3FFF'FFFF'FFFF'FFC0;
  return static_cast<std::int64_t>(random_key(0, slot.name) & aligned_and_positive);
}

std::vector<StateField> master_field(const Chunk& chunk, StateLayout layout, DType working) {
  if (splits_master(layout, working)) return {{"remainder", DType::i16, chunk.size}};
  return {{"master", DType::f32, chunk.size}};
}

bool on_device(const SpaceLayout::Slot& slot) {
  return slot.residency == Residency::device;
}

}  // namespace

ParameterSpace::ParameterSpace(const std::vector<Parameter>& parameters, const DevicePtr& device,
                               DType working, Use use, const SpaceOptions& options)
    : options_(options), layout_(parameters, options.layout_options()) {
  check(!options.narrow_gradients || working == DType::bf16,
        "gradients are summed in bf16 only where weights are bf16");
  check(!slots().empty(), "a parameter space without parameters");
  working_ =
      FlatBuffer(layout_.weight_parts(), device, options.host.pinned, working, MemoryUse::weights);
  versions_.resize(static_cast<std::size_t>(slots().back().section) + 1);
  for (const Slot& slot : slots())
    *slot.tensor = working_.slice(slot.offset, slot.shape, slot.spare_rows);
  if (use == Use::inference) return;
  cut_into_chunks();
  if (options_.owned) cut_at_borders();
  if (accumulator_of(working) != working) {
    const auto fields = [&](const Chunk& chunk) {
      return master_field(chunk, options_.layout, working);
    };
    master_ = std::make_unique<ChunkedState>(chunks_, fields, device, options_.host);
  }
  make_gradients();
}

void ParameterSpace::cut_into_chunks() {
  int section = 0;
  for (const Slot& slot : slots()) {
    // Sharded gradients of a section need not lie next to those of the section before.
    const bool apart =
        options_.shard_gradients && slot.section != std::exchange(section, slot.section);
    if (options_.whole_tensors) {
      const bool matrix = slot.shape.size() >= 2;
      chunks_.push_back({.offset = slot.offset,
                         .size = slot.size,
                         .gradient_offset = slot.gradient_offset,
                         .row_length = matrix ? slot.shape.back() : 0,
                         .decay = slot.decay,
                         .bulk = slot.bulk,
                         .residency = slot.residency,
                         .section = slot.section});
      if (slot.hidden()) chunks_.back().hidden = {slot.matrices(), slot.in_out};
      continue;
    }
    if (slot.bulk) {
      const std::int64_t row = slot.shape.back();
      // Takes a multiple of eight rows, so that most chunks start aligned.
      std::int64_t rows = std::max<std::int64_t>(1, options_.chunk / row);
      if (rows > 8) rows -= rows % 8;
      for (std::int64_t first = 0; first < slot.size; first += rows * row)
        chunks_.push_back({.offset = slot.offset + first,
                           .size = std::min(rows * row, slot.size - first),
                           .gradient_offset = slot.gradient_offset + first,
                           .row_length = row,
                           .decay = slot.decay,
                           .bulk = true,
                           .random_offset = random_offset(slot) + first,
                           .residency = slot.residency,
                           .section = slot.section});
      continue;
    }
    if (!on_device(slot)) {  // a large embedding
      for (std::int64_t first = 0; first < slot.padded_size; first += options_.chunk)
        chunks_.push_back({.offset = slot.offset + first,
                           .size = std::min(options_.chunk, slot.padded_size - first),
                           .gradient_offset = slot.gradient_offset + first,
                           .row_length = 0,
                           .decay = slot.decay,
                           .bulk = false,
                           .residency = slot.residency,
                           .section = slot.section});
      continue;
    }
    const bool joins = !apart && !chunks_.empty() && !chunks_.back().bulk &&
                       chunks_.back().residency == Residency::device &&
                       chunks_.back().decay == slot.decay;
    if (joins)
      chunks_.back().size += slot.padded_size;
    else
      chunks_.push_back({.offset = slot.offset,
                         .size = slot.padded_size,
                         .gradient_offset = slot.gradient_offset,
                         .row_length = 0,
                         .decay = slot.decay,
                         .bulk = false});
  }
}

void ParameterSpace::cut_at_borders() {
  std::vector<Chunk> cut;
  auto range = options_.owned->begin();
  const auto end = options_.owned->end();
  for (Chunk rest : chunks_) {
    while (rest.size > 0) {
      while (range != end && range->end <= rest.offset)
        ++range;
      const bool owned = range != end && range->begin <= rest.offset;
      const std::int64_t border = range == end ? size() : owned ? range->end : range->begin;
      Chunk& chunk = cut.emplace_back(rest);
      chunk.owned = owned;
      chunk.size = std::min(rest.size, border - rest.offset);
      check(!chunk.bulk || chunk.size % chunk.row_length == 0 || chunk.size == rest.size,
            "the parameter space was divided inside a row of a matrix");
      rest.offset += chunk.size;
      rest.gradient_offset += chunk.size;
      rest.random_offset += chunk.size;
      rest.size -= chunk.size;
    }
  }
  chunks_ = std::move(cut);
}

void ParameterSpace::make_gradients() {
  check(!options_.shard_gradients || options_.owned,
        "sharded gradients need the ranges that this rank owns");
  const DType sums = accumulator_of(working_.dtype());
  gradients_.emplace(layout_, device(), options_.host.pinned, sums, working_.dtype(),
                     options_.shard_gradients ? options_.owned : std::nullopt);
  const MemoryScope scope(*device(), MemoryUse::gradients);
  std::int64_t blocks = 0;
  for (const auto& stretch : layout_.stretches)
    blocks += stretch.blocks();
  norm_partials_ = Tensor::empty(device(), {blocks}, DType::f64);
  norm_ = Tensor::empty(device(), {1}, DType::f64);
  clip_factor_ = Tensor::empty(device(), {1}, sums);
  for (const Slot& slot : slots()) {
    slot.tensor->set_requires_grad(true);
    const std::int64_t begin = slot.gradient_offset;
    const Tensor gradient = gradients_->written(slot.narrow, begin, begin + slot.padded_size);
    set_gradient_buffer(*slot.tensor, gradient.slice(0, slot.shape, slot.spare_rows));
  }
}

const ParameterSpace::Slot* ParameterSpace::find(const std::string& name) const {
  const auto found = std::ranges::find(slots(), name, &Slot::name);
  return found == slots().end() ? nullptr : &*found;
}

View ParameterSpace::gradient_view(const Chunk& chunk) const {
  const bool narrow = chunk.bulk && options_.narrow_gradients;
  return gradients_->kept(narrow, chunk.gradient_offset, chunk.gradient_offset + chunk.size).view();
}

DType ParameterSpace::weight_dtype() const {
  return has_master() ? DType::f32 : working_.dtype();
}

/// Calls body(chunk, first element in the chunk, elements, elements done before).
template <class Body>
void ParameterSpace::for_each_piece(std::int64_t first, std::int64_t count, Body&& body) const {
  auto chunk = std::ranges::upper_bound(chunks_, first, {}, &Chunk::offset) - chunks_.begin() - 1;
  for (std::int64_t done = 0; done < count; ++chunk) {
    const Chunk& here = chunks_[static_cast<std::size_t>(chunk)];
    const std::int64_t skip = first + done - here.offset;
    const std::int64_t part = std::min(count - done, here.size - skip);
    check(part > 0, "weights were asked for that belong to no parameter");
    body(static_cast<std::size_t>(chunk), skip, part, done);
    done += part;
  }
}

void ParameterSpace::read_weights(std::int64_t first, std::span<std::byte> out) const {
  const auto count = static_cast<std::int64_t>(out.size() / size_of(weight_dtype()));
  if (!has_master()) return working_.kept(first, {count}).copy_bytes_to(out);
  if (!splits_master(options_.layout, working_.dtype()))
    return for_each_piece(first, count, [&](auto chunk, auto skip, auto part, auto done) {
      master_->read(chunk, 0, skip,
                    out.subspan(static_cast<std::size_t>(done) * 4, 4 * std::size_t(part)));
    });
  std::vector<BFloat16> high(static_cast<std::size_t>(count));
  std::vector<std::int16_t> low(high.size());
  working_.kept(first, {count}).copy_bytes_to(std::as_writable_bytes(std::span(high)));
  for_each_piece(first, count, [&](auto chunk, auto skip, auto part, auto done) {
    const auto piece = std::span(low).subspan(std::size_t(done), std::size_t(part));
    master_->read(chunk, 0, skip, std::as_writable_bytes(piece));
  });
  auto* const values = reinterpret_cast<float*>(out.data());
  for (std::size_t i = 0; i < high.size(); ++i)
    values[i] = SplitMaster::join(high[i], low[i]);
  for_each_piece(first, count, [&](auto chunk, auto, auto part, auto done) {
    if (!chunks_[chunk].owned) std::fill_n(values + done, part, 0.0f);
  });
}

void ParameterSpace::write_weights(std::int64_t first, std::span<const std::byte> in) {
  const auto count = static_cast<std::int64_t>(in.size() / size_of(weight_dtype()));
  const auto slot = std::ranges::upper_bound(slots(), first, {}, &Slot::offset) - 1;
  count_write(slot->section);
  if (!has_master()) return working_.kept(first, {count}).copy_bytes_from(in);
  std::vector<std::byte> narrow(static_cast<std::size_t>(count) * size_of(working_.dtype()));
  run(Cast{.out = host_view(narrow, working_.dtype()),
           .in = host_view(in, DType::f32),
           .half_away = true},
      host_stream);
  working_.kept(first, {count}).copy_bytes_from(narrow);
  const bool split = splits_master(options_.layout, working_.dtype());
  std::vector<std::int16_t> low(split ? static_cast<std::size_t>(count) : 0);
  const auto* const values = reinterpret_cast<const float*>(in.data());
  for (std::size_t i = 0; i < low.size(); ++i)
    low[i] = SplitMaster(values[i]).low;
  for_each_piece(first, count, [&](auto chunk, auto skip, auto part, auto done) {
    const auto at = static_cast<std::size_t>(done), size = static_cast<std::size_t>(part);
    master_->write(
        chunk, 0, skip,
        split ? std::as_bytes(std::span(low).subspan(at, size)) : in.subspan(4 * at, 4 * size));
  });
}

void ParameterSpace::write_shard(const Slot& slot, std::int64_t first, std::span<std::byte> in) {
  const auto mine = slot.shard.pick(first, in, size_of(weight_dtype()));
  if (!mine.empty()) write_weights(slot.offset + slot.shard.place(first), mine);
}

void ParameterSpace::initialize(std::uint64_t seed) {
  constexpr std::int64_t piece = 1 << 20;
  std::vector<float> values;
  for (const Slot& slot : slots()) {
    for (std::int64_t first = 0; first < slot.size; first += piece) {
      values.resize(static_cast<std::size_t>(std::min(piece, slot.size - first)));
      initial_values(slot, seed, first, values);
      std::span<const std::byte> bytes = std::as_bytes(std::span(values));
      if (weight_dtype() == DType::f32) {
        write_weights(slot.offset + first, bytes);
        continue;
      }
      std::vector<std::byte> converted(values.size() * size_of(weight_dtype()));
      run(Cast{.out = host_view(converted, weight_dtype()),
               .in = host_view(bytes, DType::f32),
               .half_away = true},
          host_stream);
      write_weights(slot.offset + first, converted);
    }
  }
}

void ParameterSpace::forget_gradients() {
  for (const Slot& slot : slots())
    forget_gradient(*slot.tensor);
}

void ParameterSpace::count_gradients_as_written() {
  for (const Slot& slot : slots())
    leaf_gradient_target(*slot.tensor, slot.tensor->dtype());
}

void ParameterSpace::zero_unused_gradients() {
  for (const Slot& slot : slots())
    if (!gradients_->place_of(slot.section)) zero_unused_gradient(*slot.tensor);
}

std::uint64_t ParameterSpace::version(int section) const {
  return versions_[static_cast<std::size_t>(section)];
}

/// True if the gradients of the stretch rest in host memory.
bool ParameterSpace::rests(const SpaceLayout::Stretch& stretch) const {
  const auto slot = std::ranges::upper_bound(slots(), stretch.offset, {}, &Slot::offset) - 1;
  return slot->residency == Residency::host;
}

void ParameterSpace::sum_squares_of(int section) {
  std::vector<SquaredNorm> norms;
  std::int64_t first_partial = 0;
  for (const auto& stretch : layout_.stretches) {
    if (stretch.section == section && rests(stretch))
      norms.push_back({.partial = norm_partials_.slice(first_partial, {stretch.blocks()}).view(),
                       .in = gradients_
                                 ->written(stretch.narrow, stretch.gradient_offset,
                                           stretch.gradient_offset + stretch.size)
                                 .view(),
                       .block = stretch.block});
    first_partial += stretch.blocks();
  }
  run(SquaredNormBatch{norms}, working_.stream());
}

const Tensor& ParameterSpace::sum_squares(const std::vector<SpaceRange>& ranges) {
  const Stream stream = working_.stream();
  if (layout_.rests() && !ranges.empty())
    check(ranges == std::vector<SpaceRange>{{0, size()}},
          "gradients that rest in host memory are measured as a whole");
  else
    norm_partials_.fill_zero();
  std::vector<SquaredNorm> norms;
  std::int64_t first_partial = 0;
  for (const auto& stretch : layout_.stretches) {
    if (rests(stretch)) {
      first_partial += stretch.blocks();
      continue;
    }
    for (const auto& range : ranges) {
      const std::int64_t begin = std::max(range.begin, stretch.offset) - stretch.offset;
      const std::int64_t end = std::min(range.end - stretch.offset, stretch.size);
      if (begin >= end) continue;
      check(begin % stretch.block == 0, "a norm was asked for from the middle of a block on");
      const std::int64_t blocks = (end - begin + stretch.block - 1) / stretch.block;
      const Tensor gradient = gradients_->kept(stretch.narrow, stretch.gradient_offset + begin,
                                               stretch.gradient_offset + end);
      norms.push_back(
          {.partial = norm_partials_.slice(first_partial + begin / stretch.block, {blocks}).view(),
           .in = gradient.view(),
           .block = stretch.block});
    }
    first_partial += stretch.blocks();
  }
  run(SquaredNormBatch{norms}, stream);
  return norm_partials_;
}

const Tensor& ParameterSpace::clip_factor(const Tensor& partials, double limit, double loss_scale) {
  run(ClipFactor{.norm = norm_.view(),
                 .factor = clip_factor_.view(),
                 .partial = partials.view(),
                 .limit = limit,
                 .loss_scale = loss_scale},
      working_.stream());
  return clip_factor_;
}

const Tensor& ParameterSpace::clip_gradients(double limit, double loss_scale) {
  return clip_factor(sum_squares({{0, size()}}), limit, loss_scale);
}

}  // namespace sluice
