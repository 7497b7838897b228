#include "optim/optimizer_config.h"

namespace sluice {

MuonOptions muon_options(const OptimizerConfig& c, double lr) {
  const bool shared = c.muon_scale == MuonScale::rms;
  const double muon_lr = c.muon_lr.value_or(shared ? lr : 0.02);
  return {
      .momentum = c.muon_momentum.value_or(0.95),
      .weight_decay = c.weight_decay,
      .scale = c.muon_scale,
      .rate_factor = lr == 0 ? 1 : muon_lr / lr,
      .adamw = {
          .beta1 = c.beta1, .beta2 = c.beta2, .epsilon = c.eps, .weight_decay = c.weight_decay}};
}

}  // namespace sluice
