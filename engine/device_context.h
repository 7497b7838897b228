#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "engine/arena.h"
#include "kernels/base/runtime.h"

namespace sluice {

/// One device as the engine uses it: its runtime, its compute stream and the arena that owns its
/// memory. Made in `main` and passed down; shared, because every Storage keeps its device alive.
class DeviceContext {
 public:
  /// Takes no memory: reserve() comes before the first allocation.
  explicit DeviceContext(std::unique_ptr<Runtime> runtime);
  /// Also reserves `budget` bytes.
  DeviceContext(std::unique_ptr<Runtime> runtime, std::size_t budget);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  /// Reserves `budget` bytes of address space at once (0: all that the machine has), from which all
  /// allocations are made. Call it once. Throws Error when the system refuses the reservation.
  void reserve(std::size_t budget);

  Device device() const { return runtime_->device(); }
  Runtime& runtime() const { return *runtime_; }
  Stream stream() const { return runtime_->compute_stream(); }
  /// Stream for copies that overlap with computation; created on first use.
  Stream copy_stream();
  const Arena& arena() const { return *arena_; }

  /// True if f32 matrix products may round their operands to tf32.
  bool tf32() const { return tf32_; }
  void allow_tf32(bool yes) { tf32_ = yes; }
  /// True if attention asks for AttentionForward::wgmma.
  bool wgmma_attention() const { return wgmma_attention_; }
  void ask_for_wgmma_attention(bool yes) { wgmma_attention_ = yes; }

  std::byte* allocate(std::size_t bytes) { return start_ + arena_->allocate(bytes, use_); }
  void release(std::byte* block) { arena_->release(static_cast<std::size_t>(block - start_)); }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::byte* start_ = nullptr;
  std::size_t reserved_ = 0;
  std::unique_ptr<Arena> arena_;
  std::optional<Stream> copy_stream_;
  bool tf32_ = false;
  bool wgmma_attention_ = false;
  MemoryUse use_ = MemoryUse::activations;
  friend class MemoryScope;
};

/// While an object of this class lives, allocations on the device count towards `use`.
class MemoryScope {
 public:
  MemoryScope(DeviceContext& device, MemoryUse use)
      : device_(device), previous_(std::exchange(device.use_, use)) {}
  ~MemoryScope() { device_.use_ = previous_; }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  DeviceContext& device_;
  MemoryUse previous_;
};

using DevicePtr = std::shared_ptr<DeviceContext>;

DevicePtr make_cpu_device(std::size_t budget = 0);
DevicePtr make_cuda_device(int index = 0, std::size_t budget = 0);
/// Allocates as the real device would but runs no kernels; its arena's peak is the memory plan.
DevicePtr make_meta_device(std::size_t budget = 0, std::size_t workspace_bytes = 0);

}  // namespace sluice
