#include "engine/offload/file_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {
namespace {

constexpr std::uint64_t alignment = ScratchFile::alignment;

std::uint64_t rounded_up(std::uint64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Memory through which unaligned parts of a file pass.
struct Window {
  static constexpr std::uint64_t size = std::uint64_t{1} << 20;

  std::span<std::byte> first(std::uint64_t bytes) const { return {memory.get(), bytes}; }

  struct Free {
    void operator()(std::byte* at) const { ::operator delete (at, std::align_val_t{alignment}); }
  };
  std::unique_ptr<std::byte, Free> memory{
      static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}))};
};

/// A read that is under way.
struct WindowRead {
  WindowRead() = default;
  WindowRead(const WindowRead&) = delete;
  WindowRead& operator=(const WindowRead&) = delete;
  ~WindowRead() {
    if (transfer.valid()) transfer.wait();  // its memory must stay until then
  }
  /// Waits, and copies what was read to its place.
  void finish() {
    if (!transfer.valid()) return;
    std::exchange(transfer, {}).get();
    std::memcpy(to.data(), from, to.size());
  }

  Window window;
  std::span<std::byte> to{};
  const std::byte* from = nullptr;
  std::shared_future<void> transfer{};
};

/// Calls body(aligned offset in the file, aligned bytes, bytes to skip, bytes, bytes done before)
/// for pieces that fit into a window and together are [begin, begin + bytes).
template <class Body>
void for_each_window(std::uint64_t begin, std::uint64_t bytes, Body&& body) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t at = begin + done, start = at / alignment * alignment;
    const std::uint64_t part = std::min(bytes - done, start + Window::size - at);
    body(start, rounded_up(at - start + part), at - start, part, done);
    done += part;
  }
}

}  // namespace

FileMemory::FileMemory(const std::filesystem::path& folder, std::uint64_t capacity)
    : capacity_(rounded_up(capacity)), file_(std::make_unique<ScratchFile>(folder, capacity_)) {}

FileMemory::Region FileMemory::allocate(std::size_t bytes) {
  const Region region{allocated_, rounded_up(bytes)};
  check(file_ == nullptr || region.bytes <= capacity_ - allocated_,
        "more was allocated in a file than was planned");
  allocated_ += region.bytes;
  return region;
}

void FileMemory::read(const Region& region, std::uint64_t first, std::span<std::byte> out) {
  check(first + out.size() <= region.bytes, "a read beyond the end of a region");
  if (file_ == nullptr) {
    std::ranges::fill(out, std::byte{});
    return;
  }
  // Several windows are on their way at a time, which a disk needs to be fast.
  std::array<WindowRead, 4> reads;
  std::size_t turn = 0;
  for_each_window(region.offset + first, out.size(),
                  [&](auto start, auto bytes, auto skip, auto part, auto done) {
                    WindowRead& read = reads[turn++ % reads.size()];
                    read.finish();
                    read.to = out.subspan(done, part);
                    read.from = read.window.memory.get() + skip;
                    read.transfer =
                        file_->start([file = file_.get(), start, to = read.window.first(bytes)] {
                          file->read(start, to);
                        });
                  });
  for (WindowRead& read : reads)
    read.finish();
}

void FileMemory::write(const Region& region, std::uint64_t first,
                       std::span<const std::byte> bytes) {
  check(first + bytes.size() <= region.bytes, "a write beyond the end of a region");
  if (file_ == nullptr) return;
  const Window window;
  for_each_window(region.offset + first, bytes.size(),
                  [&](auto start, auto whole, auto skip, auto part, auto done) {
                    const std::span<std::byte> at = window.first(whole);
                    if (part < whole) file_->read(start, at);
                    std::memcpy(at.data() + skip, bytes.data() + done, part);
                    file_->write(start, at);
                  });
}

std::shared_future<void> FileMemory::start(std::vector<Part> written, std::vector<Part> read,
                                           std::vector<std::shared_future<void>> after) {
  if (file_ == nullptr) {
    std::promise<void> nothing;
    nothing.set_value();
    return nothing.get_future().share();
  }
  return file_->start(
      [this, written = std::move(written), read = std::move(read), after = std::move(after)] {
        for (const std::shared_future<void>& earlier : after)
          earlier.get();
        for (const auto& [region, at] : written)
          file_->write(region.offset, {at, region.bytes});
        for (const auto& [region, at] : read)
          file_->read(region.offset, {at, region.bytes});
      });
}

}  // namespace sluice
