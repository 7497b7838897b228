#pragma once

#include <memory>

#include "optim/muon_rule.h"
#include "optim/optimizer.h"

namespace sluice {

std::unique_ptr<Optimizer> make_adamw(ParameterSpace& space, const AdamWOptions& options,
                                      int buffers = 4);
std::unique_ptr<Optimizer> make_sgd(ParameterSpace& space, const SgdOptions& options,
                                    int buffers = 4);
/// `space` must have whole tensors, all state on the device, and the state layout fp32 or split.
std::unique_ptr<Optimizer> make_adafactor(ParameterSpace& space, const AdafactorOptions& options);
/// `space` must have whole tensors, whose state is on the device or visits it, and the state layout
/// fp32 or split. Sets MuonOptions::products and tf32: matrix products are in bf16 if the working
/// weights are, else in f32 (f64). If ranks divide matrices, MuonOptions::sum is needed, and all of
/// them own the same matrices and update them in the same order.
std::unique_ptr<Optimizer> make_muon(ParameterSpace& space, MuonOptions options, int buffers = 4);

}  // namespace sluice
