#include "optim/offload/file_ring.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {
namespace {

std::uint64_t bytes_of(const FileRing::Item& item) {
  std::uint64_t bytes = 0;
  for (const FileMemory::Region& region : item)
    bytes += region.bytes;
  return bytes;
}

/// Rounds an address up to the alignment that a file needs. Arenas align to less.
std::byte* aligned(std::byte* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  return at + (ScratchFile::alignment - address % ScratchFile::alignment) % ScratchFile::alignment;
}

}  // namespace

FileRing::FileRing(std::shared_ptr<FileMemory> file, const DevicePtr& memory,
                   std::vector<Item> items, int buffers)
    : file_(std::move(file)), items_(std::move(items)), written_(items_.size()) {
  check(buffers > 0 && !items_.empty(), "a ring needs a buffer and an item");
  std::uint64_t largest = 0;
  for (const Item& item : items_)
    largest = std::max(largest, bytes_of(item));
  const MemoryScope scope(*memory, MemoryUse::staging);
  for (int i = 0; i < buffers; ++i) {
    Tensor room = Tensor::empty(
        memory, {static_cast<std::int64_t>(largest + ScratchFile::alignment)}, DType::u8);
    std::byte* const start = aligned(room.view().address);
    buffers_.push_back({.memory = std::move(room), .start = start});
  }
}

FileRing::~FileRing() {
  for (const Buffer& buffer : buffers_)
    if (buffer.transfer.valid()) buffer.transfer.wait();
}

std::vector<FileMemory::Part> FileRing::parts_of(std::size_t item, const Buffer& buffer) const {
  std::vector<FileMemory::Part> parts;
  std::byte* at = buffer.start;
  for (const FileMemory::Region& region : items_[item]) {
    parts.push_back({region, at});
    at += region.bytes;
  }
  return parts;
}

/// Starts a transfer that writes `written` from a buffer and reads the next item into it, if this
/// round has one that belongs there.
void FileRing::start(std::size_t buffer, std::vector<FileMemory::Part> written) {
  Buffer& place = buffers_[buffer];
  std::vector<std::shared_future<void>> after;
  if (place.transfer.valid()) after.push_back(place.transfer);
  std::vector<FileMemory::Part> read;
  const std::size_t turn = turn_ + fetched_ - taken_;
  if (fetched_ < items_.size() && turn % buffers_.size() == buffer) {
    read = parts_of(fetched_, place);
    // If the round is short, the item may still be on its way to the file from another buffer.
    if (written_[fetched_].valid()) after.push_back(written_[fetched_]);
    moved_.from_file += bytes_of(items_[fetched_]);
    ++fetched_;
  }
  place.transfer = file_->start(std::move(written), std::move(read), std::move(after));
}

void FileRing::prefetch() {
  while (fetched_ < std::min(items_.size(), taken_ + buffers_.size()))
    start((turn_ + fetched_ - taken_) % buffers_.size(), {});
}

std::vector<std::byte*> FileRing::take() {
  check(taken_ < items_.size(), "a round of updates has no more items");
  prefetch();
  Buffer& buffer = buffer_of(turn_);
  buffer.transfer.get();
  std::vector<std::byte*> addresses;
  for (const FileMemory::Part& part : parts_of(taken_, buffer))
    addresses.push_back(part.at);
  return addresses;
}

void FileRing::done() {
  const std::size_t item = taken_, buffer = turn_ % buffers_.size();
  ++taken_;
  ++turn_;
  moved_.to_file += bytes_of(items_[item]);
  start(buffer, parts_of(item, buffers_[buffer]));
  written_[item] = buffers_[buffer].transfer;
  if (taken_ == items_.size()) last_moved_ = std::exchange(moved_, {});
}

void FileRing::rewind() {
  check(taken_ == 0 || taken_ == items_.size(),
        "a round of updates was begun before the last one was done");
  if (taken_ == 0) return;
  fetched_ = taken_ = 0;
}

void FileRing::forget() {
  check(taken_ == 0 || taken_ == items_.size(), "state was asked for while it was being updated");
  if (taken_ > 0) return;
  fetched_ = 0;
  moved_ = {};
}

void FileRing::synchronize() {
  for (const Buffer& buffer : buffers_)
    if (buffer.transfer.valid()) buffer.transfer.get();
}

}  // namespace sluice
