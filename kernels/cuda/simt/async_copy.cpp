#include "kernels/cuda/simt/async_copy.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/simt/block.h"

namespace sluice::simt {
namespace {

void land(const BlockRunner::PendingCopy& copy) {
  if (copy.bytes > 0)
    std::memcpy(copy.to, copy.from, 16);
  else
    std::memset(copy.to, 0, 16);
}

}  // namespace

void cp_async_16(void* to, const void* from, bool valid) {
  check(reinterpret_cast<std::uintptr_t>(to) % 16 == 0 &&
            (!valid || reinterpret_cast<std::uintptr_t>(from) % 16 == 0),
        "cp.async: an address is not 16-byte aligned");
  BlockRunner& runner = BlockRunner::here();
  auto& copies = runner.copies();
  const BlockRunner::PendingCopy copy{static_cast<std::byte*>(to),
                                      static_cast<const std::byte*>(from), valid ? 16u : 0u,
                                      copies.group};
  if (runner.draw() % 2 == 0)
    land(copy);
  else
    copies.pending.push_back(copy);
}

void cp_async_commit() {
  ++BlockRunner::here().copies().group;
}

void cp_async_wait(unsigned pending) {
  auto& copies = BlockRunner::here().copies();
  const auto landed = [&](const BlockRunner::PendingCopy& copy) {
    if (copy.group + pending >= copies.group) return false;
    land(copy);
    return true;
  };
  std::erase_if(copies.pending, landed);
}

}  // namespace sluice::simt
