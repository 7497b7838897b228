#include "optim/space/chunked_state.h"

#include <algorithm>

#include "engine/offload/file_memory.h"

namespace sluice {
namespace {

const DevicePtr& owner_of(Residency residency, const DevicePtr& device, const HostMemory& host) {
  switch (residency) {
    case Residency::device:
      return device;
    case Residency::streamed:
    case Residency::speculative:
      return host.pinned;
    case Residency::cpu:
    case Residency::host:
      break;
  }
  return host.ordinary;
}

}  // namespace

ChunkedState::ChunkedState(const std::vector<Chunk>& chunks, const Fields& fields,
                           const DevicePtr& device, const HostMemory& host)
    : file_(host.file) {
  constexpr auto alignment = static_cast<std::int64_t>(Arena::alignment);
  for (const Chunk& chunk : chunks) {
    Entry& entry = entries_.emplace_back();
    entry.fields = fields(chunk);
    std::int64_t bytes = 0;
    for (const StateField& field : entry.fields) {
      entry.offsets.push_back(bytes);
      bytes += field.count * static_cast<std::int64_t>(size_of(field.dtype));
      bytes = (bytes + alignment - 1) / alignment * alignment;
    }
    if (bytes == 0 || !chunk.owned) continue;
    if (file_ != nullptr && chunk.residency != Residency::device) {
      check(chunk.residency != Residency::speculative, "a file has no second place for state");
      entry.region = file_->allocate(static_cast<std::size_t>(bytes));
      continue;
    }
    const DevicePtr& owner = owner_of(chunk.residency, device, host);
    check(owner != nullptr, "state on the host needs host memory");
    const MemoryScope scope(*owner, MemoryUse::state);
    entry.home = Tensor::zeros(owner, {bytes}, DType::u8);
    if (chunk.residency == Residency::speculative)
      entry.spare = Tensor::zeros(owner, {bytes}, DType::u8);
  }
}

std::vector<View> ChunkedState::views(std::size_t chunk, std::byte* start) const {
  const Entry& entry = entries_[chunk];
  std::vector<View> views;
  for (std::size_t i = 0; i < entry.fields.size(); ++i)
    views.emplace_back(start + entry.offsets[i], entry.fields[i].dtype,
                       std::initializer_list<std::int64_t>{entry.fields[i].count});
  return views;
}

std::vector<View> ChunkedState::views(std::size_t chunk) const {
  const Tensor& at = home(chunk);
  return at ? views(chunk, at.view().address) : std::vector<View>{};
}

/// Returns where an element of a field is in the chunk's memory, in bytes.
std::uint64_t ChunkedState::offset_of(std::size_t chunk, std::size_t field,
                                      std::int64_t first) const {
  const Entry& entry = entries_[chunk];
  const auto width = static_cast<std::int64_t>(size_of(entry.fields[field].dtype));
  return static_cast<std::uint64_t>(entry.offsets[field] + first * width);
}

Tensor ChunkedState::piece(std::size_t chunk, std::size_t field, std::int64_t first,
                           std::size_t bytes) const {
  return home(chunk).slice(static_cast<std::int64_t>(offset_of(chunk, field, first)),
                           {static_cast<std::int64_t>(bytes)});
}

void ChunkedState::read(std::size_t chunk, std::size_t field, std::int64_t first,
                        std::span<std::byte> out) const {
  if (in_file(chunk))
    file_->read(region(chunk), offset_of(chunk, field, first), out);
  else if (home(chunk))
    piece(chunk, field, first, out.size()).copy_bytes_to(out);
  else
    std::ranges::fill(out, std::byte{});
}

void ChunkedState::write(std::size_t chunk, std::size_t field, std::int64_t first,
                         std::span<const std::byte> in) const {
  if (in_file(chunk))
    file_->write(region(chunk), offset_of(chunk, field, first), in);
  else if (home(chunk))
    piece(chunk, field, first, in.size()).copy_bytes_from(in);
}

}  // namespace sluice
