#include "parallel/pipeline/links.h"

#include <fmt/format.h>

#include <array>

namespace sluice {

StageLinks::StageLinks(const std::vector<int>& rank_of_stage, int rank, const MakeGroup& make)
    : outputs_(rank_of_stage.size()), gradients_(rank_of_stage.size()) {
  // Every rank makes them in the order of the stages, so that no ranks wait in a circle.
  for (std::size_t stage = 0; stage + 1 < rank_of_stage.size(); ++stage) {
    const std::array members{rank_of_stage[stage], rank_of_stage[stage + 1]};
    if (members[0] == members[1] || (members[0] != rank && members[1] != rank)) continue;
    outputs_[stage] = make(members, 2 * stage, fmt::format("out {}>{}", stage, stage + 1));
    gradients_[stage] = make(members, 2 * stage + 1, fmt::format("grad {}<{}", stage, stage + 1));
  }
}

}  // namespace sluice
