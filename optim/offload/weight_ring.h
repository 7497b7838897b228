#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "engine/host_memory.h"
#include "engine/tensor.h"
#include "engine/timeline.h"
#include "optim/space/parameter_space.h"

namespace sluice {

/// Streams the matrices of sections whose weights and gradients rest in host memory
/// (Residency::host): weights to the device before a section computes, gradients back after its
/// last backward. Copies run on two streams beside the compute stream, and sections take turns in
/// two places (FlatBuffer), so that the copies of one section overlap with the computation of the
/// other. Events order the streams:
///   arrived   to-device -> compute   the weights are in their place
///   released  compute -> to-device   nothing reads the weights of the place any more
///   complete  compute -> to-host     the gradients of the place are final
///   drained   to-host -> compute     the gradients are in host memory and their place is free
class WeightRing {
 public:
  /// `space` must outlive the ring.
  explicit WeightRing(ParameterSpace& space);
  /// Waits for copies under way.
  ~WeightRing();
  WeightRing(const WeightRing&) = delete;
  WeightRing& operator=(const WeightRing&) = delete;

  /// Records copies ("weights", "gradients") and waits of the compute stream for them ("stall").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// Makes work queued in the compute stream from now on see the section's weights. It may use
  /// those of no other section that rests in host memory. A section without such weights is
  /// ignored.
  void enter(int section);
  /// Starts to copy the weights of the section that is expected next, the neighbour in the
  /// direction in which sections were entered. Their update must be done.
  void prefetch();
  /// Makes the place for a section's gradients free. Called before its first backward of a step.
  void begin_gradients(int section);
  /// Measures a section's gradients and starts to copy them to the host. Called after its last
  /// backward of a step and, among replicas, after their sum.
  void drain_gradients(int section);

  /// Starts to copy the gradient scale (one element, or none) to the host, after all gradients.
  void send_scale(const View& scale);
  /// Waits until gradients and scale of this step are in host memory. Returns the scale there.
  View wait_for_gradients();
  /// Waits until all copies are complete.
  void synchronize();

  /// Returns the bytes copied each way since the last call.
  StreamedBytes take_moved() { return std::exchange(moved_, {}); }

 private:
  struct WeightPlace {
    Event arrived, released;
    std::optional<int> section{};  ///< whose weights it holds or will hold
    std::uint64_t version = 0;     ///< of these
  };
  struct GradientPlace {
    Event complete, drained;
  };

  void fetch(int section);
  bool holds(int section) const;
  WeightPlace& place_of(int section);
  void stall(Event event);
  void copy_to_host(const View& to, const View& from);

  ParameterSpace& space_;
  DevicePtr device_;
  Stream to_device_, to_host_;
  std::array<WeightPlace, FlatBuffer::places> weights_;
  std::array<GradientPlace, FlatBuffer::places> gradients_;
  Event scale_ready_, scale_arrived_;
  Tensor scale_memory_;
  View scale_;
  int lowest_ = 0, highest_ = 0;  ///< sections that rest in host memory
  std::optional<int> current_;    ///< the section that may compute
  bool ascending_ = true;
  StreamedBytes moved_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
