#include <algorithm>

#include "optim/optimizer.h"

// The optimizer state of a parameter, whose chunks hold it in pieces, as a checkpoint stores it.

namespace sluice {

std::vector<StateField> Optimizer::fields(const ParameterSpace::Slot& slot) const {
  std::vector<StateField> fields;
  for (std::size_t i = 0; i < space_.chunks().size(); ++i) {
    const Chunk& chunk = space_.chunks()[i];
    if (chunk.offset + chunk.size <= slot.offset || chunk.offset >= slot.offset + slot.size)
      continue;
    if (!alone(slot)) {  // the chunk's fields have one number per element
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
    // Fields of a chunk that holds several slots have one number per element.
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

std::vector<Shard::Range> Optimizer::kept(const ParameterSpace::Slot& slot,
                                          std::size_t field) const {
  const StateField all = fields(slot)[field];
  const auto width = static_cast<std::int64_t>(size_of(all.dtype));
  std::vector<Shard::Range> ranges;
  for_each_piece(slot, field, 0, static_cast<std::size_t>(all.count * width),
                 [&](auto chunk, auto, auto part, auto done) {
                   if (!space_.chunks()[chunk].owned) return;
                   const auto begin = static_cast<std::int64_t>(done) / width;
                   const std::int64_t end = begin + static_cast<std::int64_t>(part) / width;
                   if (!ranges.empty() && ranges.back().end == begin)
                     ranges.back().end = end;
                   else
                     ranges.push_back({begin, end});
                 });
  return ranges;
}

void Optimizer::read_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                           std::span<std::byte> out) {
  synchronize();
  for_each_piece(slot, field, first, out.size(), [&](auto chunk, auto at, auto part, auto done) {
    state_.read(chunk, field, at, out.subspan(done, part));
  });
}

void Optimizer::write_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                            std::span<const std::byte> in) {
  synchronize();
  for_each_piece(slot, field, first, in.size(), [&](auto chunk, auto at, auto part, auto done) {
    state_.write(chunk, field, at, in.subspan(done, part));
  });
}

}  // namespace sluice
