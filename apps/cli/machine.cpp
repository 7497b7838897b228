#include "apps/cli/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "kernels/base/error.h"

namespace sluice {
namespace {

int gpu_index = 0;

}  // namespace

void use_gpu(int index) {
  gpu_index = index;
}

GpuOfRank take_gpu(Communicator& local) {
  std::string visible;
  for (int gpu = 0, gpus = cuda_devices(); gpu < gpus; ++gpu)
    visible += cuda_uuid(gpu) + '\n';
  std::map<std::string, int> takers;
  GpuOfRank mine;
  int rank = 0;
  for (const std::string& text : local.gather_texts(visible, "GPUs")) {
    std::vector<std::string> uuids;
    std::istringstream lines(text);
    for (std::string uuid; std::getline(lines, uuid);)
      uuids.push_back(uuid);
    const auto free =
        std::ranges::min_element(uuids, {}, [&](const auto& uuid) { return takers[uuid]; });
    if (free != uuids.end()) {
      ++takers[*free];
      if (rank == local.rank()) {
        mine.uuid = *free;
        use_gpu(static_cast<int>(free - uuids.begin()));
      }
    }
    ++rank;
  }
  if (!mine.uuid.empty()) mine.sharers = takers[mine.uuid];
  return mine;
}

DeviceKind choose_device(std::optional<DeviceKind> asked) {
  if (asked == DeviceKind::cpu) return DeviceKind::cpu;
  std::string why;
  if (cuda_devices(&why) == 0) {
    if (!asked) return DeviceKind::cpu;
    fail(fmt::format("--device cuda: {}", why), ErrorKind::usage);
  }
  // GPU kernels emulated on the host are for tests: `auto` never selects them.
  if (!asked && make_cuda_runtime(gpu_index)->info().emulated) return DeviceKind::cpu;
  return DeviceKind::cuda;
}

Precision resolve_precision(std::optional<PrecisionName> asked, DeviceKind kind) {
  if (kind != DeviceKind::cuda) return resolve_precision(asked, false, 0, "the CPU");
  const DeviceInfo info = make_cuda_runtime(gpu_index)->info();
  // `auto` means fp32 on an emulated GPU, so that it gives the same numbers as the CPU.
  if (!asked && info.emulated) return {};
  return resolve_precision(asked, true, info.capability, info.name);
}

Precision resolve_precision(std::optional<PrecisionName> asked, bool gpu, int capability,
                            const std::string& device_name) {
  const bool has_bf16 = !gpu || capability >= 80;
  const PrecisionName usual = !gpu       ? PrecisionName::fp32
                              : has_bf16 ? PrecisionName::bf16
                                         : PrecisionName::fp16;
  const PrecisionName name = asked.value_or(usual);
  const auto refuse_old = [&] {
    fail(fmt::format("--precision {0}: {1} has compute capability {2}.{3}, and {0} needs 8.0; use "
                     "fp16 or fp32",
                     name_in(precisions, name), device_name, capability / 10, capability % 10),
         ErrorKind::usage);
  };
  switch (name) {
    case PrecisionName::fp32:
      return {};
    case PrecisionName::fp16:
      return {.dtype = DType::f16, .loss_scaling = true};
    case PrecisionName::bf16:
      if (!has_bf16) refuse_old();
      return {.dtype = DType::bf16};
    case PrecisionName::tf32:
      if (!gpu)
        fail("--precision tf32 needs a GPU with tensor cores; on the CPU use fp32 or bf16",
             ErrorKind::usage);
      if (!has_bf16) refuse_old();
      return {.tf32 = true};
    case PrecisionName::fp64:
      if (gpu)
        fail("--precision fp64 is computed on the CPU only; use --device cpu", ErrorKind::usage);
      return {.dtype = DType::f64};
  }
  return {};
}

PrecisionName kind_of(const Precision& precision) {
  if (precision.tf32) return PrecisionName::tf32;
  switch (precision.dtype) {
    case DType::bf16:
      return PrecisionName::bf16;
    case DType::f16:
      return PrecisionName::fp16;
    case DType::f64:
      return PrecisionName::fp64;
    default:
      return PrecisionName::fp32;
  }
}

std::string name_of(const Precision& precision) {
  return std::string(name_in(all_precisions, kind_of(precision)));
}

std::unique_ptr<Runtime> make_runtime(DeviceKind kind) {
  return kind == DeviceKind::cuda ? make_cuda_runtime(gpu_index) : make_cpu_runtime();
}

DevicePtr open_device(DeviceKind kind, const Precision& precision) {
  auto device = std::make_shared<DeviceContext>(make_runtime(kind));
  device->allow_tf32(precision.tf32);
  device->ask_for_wgmma_attention(precision.wgmma_attention);
  return device;
}

DevicePtr make_device(DeviceKind kind, const Precision& precision, std::size_t budget) {
  DevicePtr device = open_device(kind, precision);
  device->reserve(budget);
  return device;
}

}  // namespace sluice
