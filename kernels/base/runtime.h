#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/base/device.h"

namespace sluice {

/// Properties that a device reports.
struct DeviceInfo {
  std::string name{};
  int capability = 0;  ///< CUDA: ten times major plus minor, 90 for an H100
  int multiprocessors = 0;
  std::size_t memory = 0;       ///< total bytes
  std::size_t free_memory = 0;  ///< bytes that were free when it was queried
  std::string driver{};
  std::string code{};            ///< CUDA: whose instructions run, "sm_90" or "PTX of sm_90"
  bool emulated = false;         ///< the CUDA kernels run on the host
  bool wgmma_attention = false;  ///< it can run AttentionForward::wgmma
  std::string uuid{};            ///< see cuda_uuid()
};

/// Memory, copies, streams and events of one device. It has no allocation policy: the engine's
/// Arena divides the region that `reserve` returns. The default implementations suit a synchronous
/// device, on which work is done when a call returns.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual Device device() const = 0;
  virtual DeviceInfo info() const = 0;

  /// Reserves an address range of `bytes`, aligned to at least 256 bytes on a GPU and 64 bytes on
  /// the CPU (where the first touch of a page backs it with memory). Returns nullptr if the system
  /// refuses.
  virtual std::byte* reserve(std::size_t bytes) = 0;
  virtual void release(std::byte* start, std::size_t bytes) = 0;

  /// Bytes that `reserve` may expect to back: physical memory, or a container's lower limit.
  virtual std::size_t capacity() const = 0;

  /// Allocates pinned host memory, which a GPU copies from and to without blocking the host.
  /// Returns nullptr if the system refuses.
  virtual std::byte* reserve_pinned(std::size_t bytes);
  virtual void release_pinned(std::byte* start, std::size_t bytes);
  /// Pins memory that exists already, at a page's border. Copies may reach from one such range into
  /// another. Returns false if the system refuses.
  virtual bool pin(std::byte* start, std::size_t bytes);
  virtual void unpin(std::byte* start);

  /// Bytes of scratch memory that the kernels on a stream share, one after another. The engine
  /// allocates it from the arena and passes it to set_workspace().
  virtual std::size_t workspace_bytes() const { return 0; }

  /// The compute stream; created with the runtime.
  virtual Stream compute_stream() const { return {device(), 0}; }
  virtual Stream make_stream() { return {device(), 0}; }
  virtual void set_workspace(Stream, std::byte*, std::size_t) {}
  virtual void synchronize(Stream) {}

  virtual Event make_event() { return {}; }
  /// Makes the event stand for all work that the stream has been given so far.
  virtual void record(Event, Stream) {}
  /// Makes later work on the stream start after the event's last record.
  virtual void wait(Stream, Event) {}
  virtual void synchronize(Event) {}
  /// True if the event's last record has been reached, or if there is none; does not wait.
  virtual bool reached(Event) { return true; }
  /// Time between two records that have both been reached.
  virtual double milliseconds(Event, Event) { return 0; }

  /// From now on, work given to the stream is recorded instead of done. Kernels, copies within the
  /// device and copies to pinned memory can be recorded, with the addresses and numbers that they
  /// were given; copies from the host, events, and waits for the stream or for an event cannot.
  /// Only GPUs have graphs.
  virtual void begin_capture(Stream stream);
  /// Ends the capture and returns what was recorded.
  virtual Graph end_capture(Stream stream);
  /// Ends a capture in which something failed.
  virtual void abandon_capture(Stream) noexcept {}
  /// Gives the stream all work of a graph.
  virtual void launch(Graph graph, Stream stream);
  virtual void release(Graph) {}

  /// `from` may be reused when the call returns. If it is pinned, it may be reused only after the
  /// stream has completed the copy.
  virtual void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes,
                              Stream stream) = 0;
  /// `to` is filled when the call returns. If it is pinned, it is filled only after the stream has
  /// completed the copy.
  virtual void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes,
                            Stream stream) = 0;
  virtual void copy_within(std::byte* to, const std::byte* from, std::size_t bytes,
                           Stream stream) = 0;
  virtual void fill_zero(std::byte* start, std::size_t bytes, Stream stream) = 0;
};

std::unique_ptr<Runtime> make_cpu_runtime();
/// The addresses of a meta runtime must never be touched; copies and fills do nothing. It requests
/// the workspace of the device that it stands for.
std::unique_ptr<Runtime> make_meta_runtime(std::size_t workspace_bytes = 0);

/// Number of CUDA devices that this program can use; 0 if it was built without CUDA or there is no
/// driver. `why`, if given, receives the reason.
int cuda_devices(std::string* why = nullptr);
/// Returns the UUID of a device, "GPU-3f2a...", or "MIG-3f2a..." of a part of one. It tells GPUs
/// apart whatever their indices, which each process may count in its own way.
std::string cuda_uuid(int index);
/// Throws Error that says what is missing and what to do.
std::unique_ptr<Runtime> make_cuda_runtime(int index = 0);

}  // namespace sluice
