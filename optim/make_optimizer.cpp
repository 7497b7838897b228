#include "optim/make_optimizer.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

bool on_device(const Chunk& chunk) {
  return chunk.residency == Residency::device;
}

/// True if the CPU updates the chunk beside a GPU.
bool on_cpu(const Chunk& chunk) {
  return chunk.residency == Residency::cpu || chunk.residency == Residency::host;
}

/// True for a shard of a matrix that is orthogonalized.
bool divided(const Chunk& chunk) {
  return chunk.hidden && std::ranges::any_of(chunk.hidden->parts, [](const MatrixShard& part) {
           return part.cut != MatrixShard::Cut::none;
         });
}

}  // namespace

std::unique_ptr<Optimizer> make_adamw(ParameterSpace& space, const AdamWOptions& options,
                                      int buffers) {
  return std::make_unique<Optimizer>(space, adamw_rule(options, space.options().layout), buffers);
}

std::unique_ptr<Optimizer> make_sgd(ParameterSpace& space, const SgdOptions& options, int buffers) {
  return std::make_unique<Optimizer>(space, sgd_rule(options), buffers);
}

std::unique_ptr<Optimizer> make_adafactor(ParameterSpace& space, const AdafactorOptions& options) {
  const StateLayout layout = space.options().layout;
  check(space.options().whole_tensors, "Adafactor needs whole tensors");
  check(layout == StateLayout::fp32 || layout == StateLayout::split,
        "Adafactor has no moments of that layout");
  check(std::ranges::all_of(space.chunks(), on_device), "Adafactor's state stays on the device");
  return std::make_unique<Optimizer>(space, adafactor_rule(options));
}

std::unique_ptr<Optimizer> make_muon(ParameterSpace& space, MuonOptions options, int buffers) {
  const StateLayout layout = space.options().layout;
  check(space.options().whole_tensors, "Muon needs whole tensors");
  check(layout == StateLayout::fp32 || layout == StateLayout::split,
        "Muon has no moments of that layout");
  check(std::ranges::none_of(space.chunks(), on_cpu),
        "Muon's matrix products have other bits on the CPU than on the GPU");
  check(options.sum || std::ranges::none_of(space.chunks(), divided),
        "Muon's ranks that divide matrices need sums over each other");
  options.products = muon_products(space.working().dtype());
  options.tf32 = space.device()->tf32();
  return std::make_unique<Optimizer>(space, muon_rule(options), buffers);
}

}  // namespace sluice
