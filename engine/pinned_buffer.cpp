#include "engine/pinned_buffer.h"

#include "kernels/base/error.h"

namespace sluice {

PinnedBuffer::PinnedBuffer(DevicePtr device, std::size_t bytes) {
  if (bytes == 0) return;
  std::byte* const start = device->runtime().reserve_pinned(bytes);
  pinned_ = {start, Release{std::move(device), bytes}};
  if (start == nullptr) ordinary_.resize(bytes);
}

void PinnedBuffer::Release::operator()(std::byte* start) const {
  try {
    device->runtime().release_pinned(start, bytes);
  } catch (const Error&) {  // whoever noticed first has reported the failed device
    return;
  }
}

}  // namespace sluice
