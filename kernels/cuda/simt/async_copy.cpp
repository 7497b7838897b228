#include "kernels/cuda/simt/async_copy.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/simt/block.h"

namespace sluice::simt {

void cp_async_16(void* to, const void* from, bool valid) {
  check(reinterpret_cast<std::uintptr_t>(to) % 16 == 0 &&
            (!valid || reinterpret_cast<std::uintptr_t>(from) % 16 == 0),
        "cp.async: an address is not 16-byte aligned");
  auto& copies = BlockRunner::here().copies();
  copies.pending.push_back({static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                            valid ? 16u : 0u, copies.group});
}

void cp_async_commit() {
  ++BlockRunner::here().copies().group;
}

void cp_async_wait(unsigned pending) {
  auto& copies = BlockRunner::here().copies();
  const auto landed = [&](const BlockRunner::PendingCopy& copy) {
    if (copy.group + pending >= copies.group) return false;
    if (copy.bytes > 0)
      std::memcpy(copy.to, copy.from, 16);
    else
      std::memset(copy.to, 0, 16);
    return true;
  };
  std::erase_if(copies.pending, landed);
}

}  // namespace sluice::simt
