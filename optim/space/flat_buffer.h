#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/tensor.h"
#include "optim/space/element_map.h"

namespace sluice {

/// Memory for values in the order of a parameter space: working weights or gradients.
///
/// Usually it is one buffer on the device. Parts that rest in host memory (Residency::host) are not
/// in it: those of a section lie side by side on the host, and the sections take turns in two
/// places on the device. Who copies them decides what the places hold.
class FlatBuffer {
 public:
  static constexpr std::size_t places = 2;

  /// Values [begin, begin + size); those of a section lie next to each other if they rest.
  struct Part {
    std::int64_t begin, size;
    std::optional<int> resting{};  ///< the section; none: on the device
  };
  /// A section that rests in host memory, there and in its place on the device.
  struct Visitor {
    Tensor home, visiting;
    std::size_t place;
  };

  FlatBuffer() = default;
  /// `parts` follow one another from 0 on. `host` may be null if none rests there. All is zero.
  FlatBuffer(const std::vector<Part>& parts, const DevicePtr& device, const DevicePtr& host,
             DType dtype, MemoryUse use);

  DType dtype() const { return on_device_.dtype(); }
  const DevicePtr& device() const { return on_device_.device(); }
  Stream stream() const { return on_device_.stream(); }

  /// Memory on the device for values from `begin` on, within one part or several that stay there.
  Tensor slice(std::int64_t begin, const Shape& shape, std::int64_t spare_rows = 0) const;
  /// Memory of those of [begin, end) that stay on the device, in order. None: it is empty.
  Tensor staying(std::int64_t begin, std::int64_t end) const;
  /// Memory that always holds them: host memory for those that rest there, else the device's.
  Tensor kept(std::int64_t begin, const Shape& shape) const;
  /// All values in order. None may rest in host memory.
  const Tensor& flat() const;
  /// None for a section that does not rest in host memory.
  const Visitor* visitor(int section) const;

 private:
  Tensor on_device_, on_host_;
  ElementMap staying_map_, visiting_map_, host_map_;
  std::vector<std::optional<Visitor>> visitors_;  ///< by section
};

}  // namespace sluice
