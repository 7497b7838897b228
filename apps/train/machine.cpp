#include "apps/train/machine.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {

DeviceKind choose_device(const std::string& name) {
  if (name == "cpu") return DeviceKind::cpu;
  std::string why;
  if (cuda_devices(&why) == 0) {
    if (name == "auto") return DeviceKind::cpu;
    fail(fmt::format("--device cuda: {}", why), ErrorKind::usage);
  }
  // On the host the GPU's kernels are for tests: nobody gets them without asking.
  if (name == "auto" && make_cuda_runtime()->info().emulated) return DeviceKind::cpu;
  return DeviceKind::cuda;
}

Precision parse_precision(const std::string& name, DeviceKind kind) {
  if (name == "fp32") return {};
  if (kind != DeviceKind::cuda) {
    if (name == "bf16") return {.dtype = DType::bf16};
    if (name == "fp16") return {.dtype = DType::f16, .loss_scaling = true};
    if (name == "fp64") return {.dtype = DType::f64};
    fail(fmt::format("--precision {} needs a GPU with tensor cores; on the CPU use fp32 or bf16",
                     name),
         ErrorKind::usage);
  }
  if (name == "fp16") return {.dtype = DType::f16, .loss_scaling = true};
  if (name == "fp64")
    fail("--precision fp64 is computed on the CPU only; use --device cpu", ErrorKind::usage);
  const DeviceInfo info = make_cuda_runtime()->info();
  if (info.capability < 80)
    fail(fmt::format("--precision {}: {} has compute capability {}.{}, and {} needs 8.0; use fp16 "
                     "or fp32",
                     name, info.name, info.capability / 10, info.capability % 10, name),
         ErrorKind::usage);
  if (name == "tf32") return {.tf32 = true};
  return {.dtype = DType::bf16};
}

std::unique_ptr<Runtime> make_runtime(DeviceKind kind) {
  return kind == DeviceKind::cuda ? make_cuda_runtime() : make_cpu_runtime();
}

DevicePtr make_device(DeviceKind kind, const Precision& precision, std::size_t budget) {
  auto device = std::make_shared<DeviceContext>(make_runtime(kind), budget);
  device->allow_tf32(precision.tf32);
  return device;
}

}  // namespace sluice
