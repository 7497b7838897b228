#pragma once

#include <cstdint>

#include "apps/plan/cost/cost_model.h"
#include "apps/plan/cost/tensor_traffic.h"

namespace sluice {

/// The work of Muon's updates of one block's matrices, beside the memory traffic of every update,
/// on the first of `ranks` that divide the matrices.
struct MuonCost {
  MuonCost(const DecoderConfig& config, std::int64_t ranks, DType dtype);

  double flops = 0;            ///< of matrix products
  TensorTraffic::Kind sums{};  ///< all-reduces over these ranks
};

/// Adds the seconds of these products and sums, for `blocks` blocks, if the rule is Muon. With ZeRO
/// a rank updates its share of the matrices.
void add_orthogonalization(StepTime& time, const DecoderConfig& config, double blocks,
                           const StepWork& work, const DeviceProfile& profile);

}  // namespace sluice
