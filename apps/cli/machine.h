#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/cli/choice.h"
#include "engine/device_context.h"
#include "kernels/base/dtype.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// The precision of training: the dtype of weights and activations and what comes with it.
struct Precision {
  DType dtype = DType::f32;
  bool tf32 = false;             ///< f32 matrix products may round their operands to TF32
  bool loss_scaling = false;     ///< needed for f16
  bool wgmma_attention = false;  ///< 16-bit attention by AttentionForward::wgmma
};

/// The choices of --device.
inline constexpr Choices<DeviceKind, 2> devices{
    {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}}};

/// Resolves --device on this machine. None (auto) takes a GPU if there is one (not an emulated
/// one). Throws Error (usage) if cuda is asked for and there is none.
DeviceKind choose_device(std::optional<DeviceKind> asked);

enum class PrecisionName : std::uint8_t { fp32, tf32, bf16, fp16, fp64 };
inline constexpr Choices<PrecisionName, 4> precisions{{{"fp32", PrecisionName::fp32},
                                                       {"tf32", PrecisionName::tf32},
                                                       {"bf16", PrecisionName::bf16},
                                                       {"fp16", PrecisionName::fp16}}};

/// The same and fp64, which is for checks.
inline constexpr Choices<PrecisionName, 5> all_precisions{
    {precisions[0], precisions[1], precisions[2], precisions[3], {"fp64", PrecisionName::fp64}}};

/// Resolves --precision. None (auto) means fp32 on the CPU; on a GPU bf16, or fp16 if it has no
/// bf16. Throws Error (usage) if the device cannot compute in it, naming what it can.
Precision resolve_precision(std::optional<PrecisionName> asked, DeviceKind kind);
/// Same for a device that is not present: a CPU, or a GPU of compute capability `capability` (ten
/// times major plus minor).
Precision resolve_precision(std::optional<PrecisionName> asked, bool gpu, int capability,
                            const std::string& device_name);
PrecisionName kind_of(const Precision& precision);
/// Returns the name that --precision uses.
std::string name_of(const Precision& precision);

/// The instructions with which a GPU computes 16-bit attention.
enum class AttentionKernel : std::uint8_t { mma, tma };

/// The device and its precision, as a user asks for them. None: the best that the machine has.
struct MachineConfig {
  std::optional<PrecisionName> precision;
  std::optional<DeviceKind> device;
  AttentionKernel attention = AttentionKernel::mma;
  bool cuda_graph = false;   ///< gives a GPU whole passes in place of kernels
  std::int64_t threads = 0;  ///< of the CPU; 0: all cores
};

/// Selects the GPU that this process computes on; the default is the first. For a program's start.
void use_gpu(int index);

/// The GPU that a rank computes on.
struct GpuOfRank {
  std::string uuid{};  ///< as in DeviceInfo; "": there is none
  int sharers = 1;     ///< ranks of this computer, this one included, that compute on it
};

/// Selects one of the GPUs that this rank sees (use_gpu): the one that the fewest lower ranks of
/// this computer have, then the first. A launcher may let each rank see all of them, or its own.
/// The ranks of this computer, `local`, call it together.
GpuOfRank take_gpu(Communicator& local);

/// Makes the runtime of the chosen device.
std::unique_ptr<Runtime> make_runtime(DeviceKind kind);

/// Makes the device without memory: see DeviceContext::reserve.
DevicePtr open_device(DeviceKind kind, const Precision& precision);

/// Makes the device with its arena of `budget` bytes (0: all that the device has).
DevicePtr make_device(DeviceKind kind, const Precision& precision, std::size_t budget = 0);

}  // namespace sluice
