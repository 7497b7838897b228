#pragma once

#include <cstddef>
#include <string>

#include "engine/device_context.h"
#include "kernels/base/dtype.h"

namespace sluice {

/// How training computes: the dtype of weights and activations, and what goes with it.
struct Precision {
  DType dtype = DType::f32;
  bool tf32 = false;          ///< f32 products may round their operands
  bool loss_scaling = false;  ///< f16
};

/// What --device (auto, cpu, cuda) comes to on this machine: `auto` takes a GPU where there is one
/// (not an emulated one). Throws Error (usage) where cuda is asked for and there is none.
DeviceKind choose_device(const std::string& name);

/// auto (fp32 on the CPU; bf16 on a GPU, or fp16 where it has no bf16), fp32, tf32, bf16, fp16,
/// fp64 as --precision names them. Throws Error (usage) for what the device cannot compute in,
/// naming what it can.
Precision parse_precision(const std::string& name, DeviceKind kind);
/// The same for a device that is not at hand: a CPU, or a GPU of that capability (ten times major
/// plus minor).
Precision parse_precision(const std::string& name, bool gpu, int capability,
                          const std::string& device_name);
/// As --precision names it.
std::string name_of(const Precision& precision);

/// Which of several GPUs this process computes on; the first unless told otherwise. For `main`.
void use_gpu(int index);

/// The runtime of the chosen device.
std::unique_ptr<Runtime> make_runtime(DeviceKind kind);

/// The device with its arena: `budget` bytes, or 0 for what the device has.
DevicePtr make_device(DeviceKind kind, const Precision& precision, std::size_t budget = 0);

}  // namespace sluice
