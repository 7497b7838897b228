#pragma once

#include <cstddef>
#include <memory>

#include "kernels/base/stream.h"

namespace sluice {

/// Raw memory and copies of one device. It has no allocation policy: the engine's Arena divides
/// the region that `reserve` returns.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual Device device() const = 0;

  /// An address range of `bytes`, backed by memory when it is first touched; 64-byte aligned.
  /// nullptr when the system refuses it.
  virtual std::byte* reserve(std::size_t bytes) = 0;
  virtual void release(std::byte* start, std::size_t bytes) = 0;

  /// Bytes that `reserve` can hope to back: physical memory, or a container's limit if lower.
  virtual std::size_t capacity() const = 0;

  virtual void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes,
                              Stream stream) = 0;
  virtual void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes,
                            Stream stream) = 0;
  virtual void copy_within(std::byte* to, const std::byte* from, std::size_t bytes,
                           Stream stream) = 0;
  virtual void fill_zero(std::byte* start, std::size_t bytes, Stream stream) = 0;
  virtual void synchronize(Stream stream) = 0;
};

std::unique_ptr<Runtime> make_cpu_runtime();
/// Hands out addresses that must never be touched; copies and fills do nothing.
std::unique_ptr<Runtime> make_meta_runtime();

}  // namespace sluice
