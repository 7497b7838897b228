#include "optim/make_optimizer.h"

#include "kernels/base/error.h"

namespace sluice {

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
  return std::make_unique<Optimizer>(space, adafactor_rule(options));
}

}  // namespace sluice
