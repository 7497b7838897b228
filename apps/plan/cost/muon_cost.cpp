#include "apps/plan/cost/muon_cost.h"

#include "apps/plan/cost/pass_times.h"
#include "optim/muon_rule.h"
#include "optim/space/space_layout.h"

namespace sluice {

MuonCost::MuonCost(const DecoderConfig& config, std::int64_t ranks, DType dtype) {
  DecoderConfig one = config;
  one.n_layer = 1;
  Decoder block(one, {.size = static_cast<int>(ranks)});
  const SpaceLayout layout(block.parameters(), {});
  for (const NewtonSchulz& iteration : muon_iterations(layout, dtype)) {
    flops += iteration.flops();
    sums += {iteration.sums().operations, static_cast<std::uint64_t>(iteration.sums().bytes)};
  }
}

void add_orthogonalization(StepTime& time, const DecoderConfig& config, double blocks,
                           const StepWork& work, const DeviceProfile& profile) {
  if (!work.orthogonalizes) return;
  const MuonCost block(config, work.shards.ranks, work.dtype);
  const double matrices = work.share * blocks;
  const double rate = matrix_rate(work, static_cast<double>(config.n_embd), profile);
  time.update += matrices * block.flops / rate;
  time.tensor += matrices * TensorTimes(work.shards).all_reduces(block.sums);
}

}  // namespace sluice
