#pragma once

#include <memory>

#include "optim/optimizer.h"

namespace sluice {

std::unique_ptr<Optimizer> make_adamw(ParameterSpace& space, const AdamWOptions& options,
                                      int buffers = 4);
std::unique_ptr<Optimizer> make_sgd(ParameterSpace& space, const SgdOptions& options,
                                    int buffers = 4);
/// `space` must have whole tensors and the state layout fp32 or split.
std::unique_ptr<Optimizer> make_adafactor(ParameterSpace& space, const AdafactorOptions& options);

}  // namespace sluice
