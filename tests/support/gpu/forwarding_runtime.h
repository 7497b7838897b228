#pragma once

#include <cstdint>
#include <memory>

#include "tests/support/gpu/gpu.h"

namespace sluice::test {

/// A GPU that does what it is told. Derived classes change something.
class ForwardingRuntime : public Runtime {
 public:
  explicit ForwardingRuntime(std::uint64_t seed) : gpu_(gpu_runtime(seed)) {}

  Device device() const override { return gpu_->device(); }
  DeviceInfo info() const override { return gpu_->info(); }
  std::byte* reserve(std::size_t bytes) override { return gpu_->reserve(bytes); }
  void release(std::byte* start, std::size_t bytes) override { gpu_->release(start, bytes); }
  std::size_t capacity() const override { return gpu_->capacity(); }
  std::byte* reserve_pinned(std::size_t bytes) override { return gpu_->reserve_pinned(bytes); }
  void release_pinned(std::byte* at, std::size_t bytes) override {
    gpu_->release_pinned(at, bytes);
  }
  bool pin(std::byte* start, std::size_t bytes) override { return gpu_->pin(start, bytes); }
  void unpin(std::byte* start) override { gpu_->unpin(start); }
  std::size_t workspace_bytes() const override { return gpu_->workspace_bytes(); }
  Stream compute_stream() const override { return gpu_->compute_stream(); }
  Stream make_stream() override { return gpu_->make_stream(); }
  void set_workspace(Stream stream, std::byte* start, std::size_t bytes) override {
    gpu_->set_workspace(stream, start, bytes);
  }
  void synchronize(Stream stream) override { gpu_->synchronize(stream); }
  Event make_event() override { return gpu_->make_event(); }
  void record(Event event, Stream stream) override { gpu_->record(event, stream); }
  void wait(Stream stream, Event event) override { gpu_->wait(stream, event); }
  void synchronize(Event event) override { gpu_->synchronize(event); }
  bool reached(Event event) override { return gpu_->reached(event); }
  double milliseconds(Event a, Event b) override { return gpu_->milliseconds(a, b); }
  void begin_capture(Stream stream) override { gpu_->begin_capture(stream); }
  Graph end_capture(Stream stream) override { return gpu_->end_capture(stream); }
  void abandon_capture(Stream stream) noexcept override { gpu_->abandon_capture(stream); }
  void launch(Graph graph, Stream stream) override { gpu_->launch(graph, stream); }
  void release(Graph graph) override { gpu_->release(graph); }
  void copy_from_host(std::byte* to, const std::byte* from, std::size_t n, Stream s) override {
    gpu_->copy_from_host(to, from, n, s);
  }
  void copy_to_host(std::byte* to, const std::byte* from, std::size_t n, Stream s) override {
    gpu_->copy_to_host(to, from, n, s);
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t n, Stream s) override {
    gpu_->copy_within(to, from, n, s);
  }
  void fill_zero(std::byte* start, std::size_t n, Stream s) override {
    gpu_->fill_zero(start, n, s);
  }

 private:
  std::unique_ptr<Runtime> gpu_;
};

}  // namespace sluice::test
