#pragma once

#include <cstdint>
#include <optional>

#include "optim/muon_rule.h"
#include "optim/schedule.h"

namespace sluice {

enum class OptimizerKind : std::uint8_t { adamw, adamw8bit, adafactor, muon, sgd };

/// True if the update rule needs each matrix as a whole.
constexpr bool takes_whole_tensors(OptimizerKind kind) {
  return kind == OptimizerKind::adafactor || kind == OptimizerKind::muon;
}

/// The update rule and its learning rate, as a user asks for them. None: a default that depends on
/// other settings.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::adamw;
  std::optional<double> lr;      ///< none: by where the weights are from
  std::optional<double> min_lr;  ///< at the end of the schedule; none: a tenth of `lr`
  std::int64_t warmup_steps = 20;
  ScheduleKind schedule = ScheduleKind::cosine;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled; for tensors of two or more dimensions
  double grad_clip = 1.0;     ///< bound on the global norm; 0: none
  MuonScale muon_scale = MuonScale::shape;
  std::optional<double> muon_lr;        ///< none: 0.02, with MuonScale::rms `lr`
  std::optional<double> muon_momentum;  ///< none: 0.95
};

/// Returns Muon's options for a run whose learning rate is `lr`.
MuonOptions muon_options(const OptimizerConfig& config, double lr);

}  // namespace sluice
