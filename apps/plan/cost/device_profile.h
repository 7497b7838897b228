#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/machine.h"
#include "engine/io/file.h"

namespace sluice {

/// GPU memory of a CUDA context with this program's kernels and cuBLASLt's, in bytes: 574 to 614
/// MiB in runs on an H200, with driver 580. A GPU with fewer multiprocessors should need less.
constexpr std::size_t usual_context = std::size_t{624} << 20;
/// Assumed host memory of a process that uses a GPU, in bytes.
constexpr std::size_t usual_gpu_process = std::size_t{1536} << 20;

/// Properties of a machine that the planner needs, measured by measure_profile or known beforehand.
struct DeviceProfile {
  std::string name{};
  bool gpu = false;
  int capability = 0;           ///< CUDA compute capability times ten; 0 for a CPU
  int multiprocessors = 0;      ///< SMs; small batches leave some of them idle
  std::size_t memory = 0;       ///< bytes of the device that computes
  std::size_t host_memory = 0;  ///< bytes of its host
  std::size_t workspace = 0;    ///< bytes that its kernels request
  std::size_t context = 0;      ///< bytes of `memory` that the driver takes
  /// Bytes of `memory` that the connections to other GPUs take; none: not known before the run.
  std::optional<std::size_t> communication{};
  std::size_t process = 0;  ///< bytes of host memory that the process takes besides the plan
  double wide_flops = 0;    ///< FLOP/s of whole passes in f32
  /// FLOP/s in 16 bits: on a GPU the rate of large products, on the CPU that of whole passes.
  double narrow_flops = 0;
  double memory_rate = 0;     ///< bytes per second of device memory
  double to_device_rate = 0;  ///< bytes per second, while copies go both ways
  double to_host_rate = 0;
  double host_rate = 0;  ///< bytes per second that the CPU's updates read and write; 0: unknown
  double link_bandwidth = 0;  ///< bytes per second from one rank to another of its node
  double link_latency = 0;    ///< seconds of latency of such a message
};

/// A GPU's rate of large products in 16 bits over its rate of whole passes in fp32. It is assumed,
/// and stands for what was not measured.
constexpr double gpu_narrow_over_wide = 6;

/// Returns the assumed profile of a GPU by name: 2080ti, 3090, 4090, a100, h100, h200, also in
/// longer forms ("NVIDIA A100-SXM4-80GB", "RTX 3090"). Throws Error (usage) for an unknown name,
/// with the list and the nearest name, and for a name with a memory size that the card does not
/// have.
DeviceProfile known_profile(const std::string& name);
std::vector<std::string> known_profiles();

/// Measures this machine's device for about two seconds: a matrix product, a copy within its
/// memory, copies in both directions at once. `communication` is what connections to other GPUs
/// have taken.
DeviceProfile measure_profile(DeviceKind kind, const Precision& precision,
                              std::optional<std::size_t> communication = {});

/// Returns the profile that a run on this machine plans with. The memory size is exact. So that
/// equal runs make equal choices, rates are nominal on the CPU, and measured and rounded to one
/// significant digit on a GPU.
DeviceProfile profile_at_hand(DeviceKind kind, const Precision& precision,
                              std::optional<std::size_t> communication = {});

/// Saves a profile as a JSON file, so that a plan can be made on another machine.
void save_profile(const std::filesystem::path& file, const DeviceProfile& profile);
/// Returns true for a file that save_profile() wrote.
bool is_profile(const File& file);
DeviceProfile load_profile(const std::filesystem::path& file);

}  // namespace sluice
