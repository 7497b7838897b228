#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/train/machine.h"

namespace sluice {

/// What the planner has to know of a machine, measured by measure_profile or known beforehand.
struct DeviceProfile {
  std::string name{};
  bool gpu = false;
  int capability = 0;           ///< CUDA's, times ten; 0 for a CPU
  int multiprocessors = 0;      ///< small batches leave some of them idle
  std::size_t memory = 0;       ///< bytes, of the device that computes
  std::size_t host_memory = 0;  ///< bytes that its host has
  std::size_t workspace = 0;    ///< bytes that its kernels ask for
  std::size_t context = 0;      ///< bytes of it that the driver takes
  std::size_t process = 0;      ///< bytes of host memory beside what is planned
  double wide_flops = 0;        ///< matrix products in f32, per second
  double narrow_flops = 0;      ///< in 16 bits
  double memory_rate = 0;       ///< bytes per second, device memory
  double to_device_rate = 0;    ///< bytes per second, while copies go both ways
  double to_host_rate = 0;
  double host_rate = 0;  ///< bytes per second that the CPU's updates read and write; 0: unknown
  double link_bandwidth = 0;  ///< bytes per second that a rank sends another of its node
  double link_latency = 0;    ///< seconds of such a message
};

/// Assumed figures of a GPU that is not at hand: 2080ti, 3090, 4090, a100, h100, h200, also as
/// people write them ("NVIDIA A100-SXM4-80GB", "RTX 3090"). Throws Error (usage) with the list and
/// the nearest for another name, and where the name says another size of memory than the card has.
DeviceProfile known_profile(const std::string& name);
std::vector<std::string> known_profiles();

/// Measures the device at hand for about two seconds: a product of matrices, a copy within its
/// memory, copies both ways at once.
DeviceProfile measure_profile(DeviceKind kind, const Precision& precision);

/// What a run on the device at hand plans with, so that equal runs make equal choices: the size of
/// its memory as it is; rates measured on a GPU and rounded to one figure, nominal elsewhere.
DeviceProfile profile_at_hand(DeviceKind kind, const Precision& precision);

/// As a JSON file, so that a plan can be made on another machine.
void save_profile(const std::filesystem::path& file, const DeviceProfile& profile);
DeviceProfile load_profile(const std::filesystem::path& file);

}  // namespace sluice
