#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/base/stream.h"

namespace sluice {

/// What a device says of itself.
struct DeviceInfo {
  std::string name{};
  int capability = 0;  ///< CUDA: ten times major plus minor, 90 for an H100
  int multiprocessors = 0;
  std::size_t memory = 0;       ///< bytes in all
  std::size_t free_memory = 0;  ///< bytes that nobody had taken when it was asked
  std::string driver{};
  bool emulated = false;  ///< the CUDA kernels run on the host
  std::string uuid{};     ///< CUDA: "GPU-3f2a...", by which ranks tell whether they share a GPU
};

/// Memory, copies, streams and events of one device. It has no allocation policy: the engine's
/// Arena divides the region that `reserve` returns. The defaults are those of a device where work
/// is done when a call returns.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual Device device() const = 0;
  virtual DeviceInfo info() const = 0;

  /// An address range of `bytes`, at least 256-byte aligned on a GPU and 64-byte aligned on the
  /// CPU, where memory backs it when it is first touched. nullptr when the system refuses it.
  virtual std::byte* reserve(std::size_t bytes) = 0;
  virtual void release(std::byte* start, std::size_t bytes) = 0;

  /// Bytes that `reserve` can hope to back: physical memory, or a container's limit if lower.
  virtual std::size_t capacity() const = 0;

  /// Host memory that a GPU copies from and to without a detour and without making the host wait;
  /// nullptr when the system refuses it.
  virtual std::byte* reserve_pinned(std::size_t bytes);
  virtual void release_pinned(std::byte* start, std::size_t bytes);

  /// Scratch that kernels on a stream share, one after another: the engine takes it from the arena
  /// and hands it over with the stream.
  virtual std::size_t workspace_bytes() const { return 0; }

  /// The stream that computes; made with the runtime.
  virtual Stream compute_stream() const { return {device(), 0}; }
  virtual Stream make_stream() { return {device(), 0}; }
  virtual void set_workspace(Stream, std::byte*, std::size_t) {}
  virtual void synchronize(Stream) {}

  virtual Event make_event() { return {}; }
  /// The event stands for all work that the stream has been given so far.
  virtual void record(Event, Stream) {}
  /// What the stream is given from now on starts after the event's last record.
  virtual void wait(Stream, Event) {}
  virtual void synchronize(Event) {}
  /// Whether the event's last record has been reached; does not wait. True before the first record.
  virtual bool reached(Event) { return true; }
  /// Between two records that have both been reached.
  virtual double milliseconds(Event, Event) { return 0; }

  /// `from` may be reused when the call returns, unless it is pinned: then when the stream has
  /// come past the copy.
  virtual void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes,
                              Stream stream) = 0;
  /// `to` is filled when the call returns, unless it is pinned: then when the stream has come past
  /// the copy.
  virtual void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes,
                            Stream stream) = 0;
  virtual void copy_within(std::byte* to, const std::byte* from, std::size_t bytes,
                           Stream stream) = 0;
  virtual void fill_zero(std::byte* start, std::size_t bytes, Stream stream) = 0;
};

std::unique_ptr<Runtime> make_cpu_runtime();
/// Hands out addresses that must never be touched; copies and fills do nothing. It asks for the
/// workspace of the device that it stands for.
std::unique_ptr<Runtime> make_meta_runtime(std::size_t workspace_bytes = 0);

/// How many CUDA devices this program can use; 0 where it was built without CUDA or there is no
/// driver. `why`, if given, says which.
int cuda_devices(std::string* why = nullptr);
/// Throws Error with what is missing and what to do.
std::unique_ptr<Runtime> make_cuda_runtime(int index = 0);

}  // namespace sluice
