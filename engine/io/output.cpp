#include "engine/io/output.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {

void FileOutput::write(std::span<const std::byte> bytes) {
  constexpr std::uint64_t stretch = std::uint64_t{256} << 20;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::uint64_t>(bytes.size(), stretch - unsynced_));
    file_.write(piece);
    bytes = bytes.subspan(piece.size());
    unsynced_ += piece.size();
    if (unsynced_ < stretch) return;
    file_.sync();
    unsynced_ = 0;
  }
}

void FileOutput::finish() {
  file_.sync();
  file_.drop_cache(0, 0);
  file_.close();
}

void MemoryOutput::write(std::span<const std::byte> bytes) {
  check(bytes.size() <= rest_.size(), "more bytes than the memory was made for");
  std::ranges::copy(bytes, rest_.begin());
  rest_ = rest_.subspan(bytes.size());
}

void MemoryOutput::finish() {
  check(rest_.empty(), "fewer bytes than the memory was made for");
}

}  // namespace sluice
