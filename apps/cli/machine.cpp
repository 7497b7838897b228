#include "apps/cli/machine.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {
namespace {

int gpu_index = 0;

}  // namespace

void use_gpu(int index) {
  gpu_index = index;
}

DeviceKind choose_device(const std::string& name) {
  if (name == "cpu") return DeviceKind::cpu;
  std::string why;
  if (cuda_devices(&why) == 0) {
    if (name == "auto") return DeviceKind::cpu;
    fail(fmt::format("--device cuda: {}", why), ErrorKind::usage);
  }
  // GPU kernels emulated on the host are for tests: `auto` never selects them.
  if (name == "auto" && make_cuda_runtime(gpu_index)->info().emulated) return DeviceKind::cpu;
  return DeviceKind::cuda;
}

Precision parse_precision(const std::string& name, DeviceKind kind) {
  if (kind != DeviceKind::cuda) return parse_precision(name, false, 0, "the CPU");
  const DeviceInfo info = make_cuda_runtime(gpu_index)->info();
  // `auto` means fp32 on an emulated GPU, so that it gives the same numbers as the CPU.
  if (name == "auto" && info.emulated) return {};
  return parse_precision(name, true, info.capability, info.name);
}

Precision parse_precision(const std::string& name, bool gpu, int capability,
                          const std::string& device_name) {
  const bool has_bf16 = !gpu || capability >= 80;
  if (name == "fp32" || (name == "auto" && !gpu)) return {};
  if (name == "fp16" || (name == "auto" && !has_bf16))
    return {.dtype = DType::f16, .loss_scaling = true};
  if (name == "bf16" || name == "auto") {
    if (has_bf16) return {.dtype = DType::bf16};
  } else if (name == "fp64") {
    if (!gpu) return {.dtype = DType::f64};
    fail("--precision fp64 is computed on the CPU only; use --device cpu", ErrorKind::usage);
  } else if (!gpu) {
    fail(fmt::format("--precision {} needs a GPU with tensor cores; on the CPU use fp32 or bf16",
                     name),
         ErrorKind::usage);
  }
  if (!has_bf16)
    fail(fmt::format("--precision {}: {} has compute capability {}.{}, and {} needs 8.0; use fp16 "
                     "or fp32",
                     name, device_name, capability / 10, capability % 10, name),
         ErrorKind::usage);
  return {.tf32 = true};
}

std::string name_of(const Precision& precision) {
  if (precision.tf32) return "tf32";
  switch (precision.dtype) {
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::f64:
      return "fp64";
    default:
      return "fp32";
  }
}

std::unique_ptr<Runtime> make_runtime(DeviceKind kind) {
  return kind == DeviceKind::cuda ? make_cuda_runtime(gpu_index) : make_cpu_runtime();
}

DevicePtr make_device(DeviceKind kind, const Precision& precision, std::size_t budget) {
  auto device = std::make_shared<DeviceContext>(make_runtime(kind), budget);
  device->allow_tf32(precision.tf32);
  return device;
}

}  // namespace sluice
