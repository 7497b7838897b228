#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/tensor.h"
#include "parallel/comm/backend/backend.h"
#include "tests/parallel/checked_ranks.h"
#include "tests/support/gpu/gpu.h"

// Collectives on GPU memory by any backend, compared with the host's, on ranks that are threads
// with a device each.

namespace sluice::test {

using MakeBackend =
    std::function<std::unique_ptr<Backend>(const std::shared_ptr<Transport>&, const DevicePtr&)>;

/// A rank with a GPU: collectives on its memory, and the same on the host's beside them.
struct GpuRank {
  std::shared_ptr<Transport> transport;
  DevicePtr device;
  Communicator gpu, host;

  GpuRank(std::shared_ptr<Transport> by, const DevicePtr& on, const MakeBackend& backend)
      : transport(std::move(by)),
        device(on),
        gpu(backend(transport, device), transport, nullptr, patient()),
        host(transport->subgroup(in_order(transport->size()), 1), nullptr, patient()) {}

  Runtime& runtime() const { return device->runtime(); }
  int rank() const { return gpu.rank(); }
  int size() const { return gpu.size(); }
  CallOptions options(std::string_view label) const {
    return {.label = label, .stream = device->stream()};
  }
};

/// An array in a GPU's memory; everything happens in the computing stream.
template <class T>
struct OnGpu {
  GpuRank& rank;
  Tensor tensor;
  std::int64_t count;

  OnGpu(GpuRank& of, const std::vector<T>& values)
      : rank(of),
        tensor(Tensor::empty(of.device, {std::max<std::int64_t>(1, std::ssize(values))},
                             dtype_for<T>())),
        count(std::ssize(values)) {
    // Something else comes before the numbers, for those who look too early.
    rank.runtime().fill_zero(address(), tensor.bytes(), tensor.stream());
    write(values);
  }
  std::byte* address() const { return tensor.view().address; }
  View view() const { return {address(), dtype_for<T>(), {count}}; }
  View piece(std::int64_t at, std::int64_t length) const {
    return {address() + static_cast<std::size_t>(at) * sizeof(T), dtype_for<T>(), {length}};
  }
  std::size_t bytes() const { return static_cast<std::size_t>(count) * sizeof(T); }
  void write(const std::vector<T>& values) const {
    rank.runtime().copy_from_host(address(), reinterpret_cast<const std::byte*>(values.data()),
                                  bytes(), tensor.stream());
  }
  std::vector<T> read() const {
    std::vector<T> values(static_cast<std::size_t>(count));
    rank.runtime().copy_to_host(reinterpret_cast<std::byte*>(values.data()), address(), bytes(),
                                tensor.stream());
    return values;
  }
};

/// Every collective on `count` numbers, as on the host. T is float, BFloat16, double or
/// std::int32_t.
template <class T>
void check_every_collective(GpuRank& rank, std::size_t count);

}  // namespace sluice::test
