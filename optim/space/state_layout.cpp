#include "optim/space/state_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {

std::optional<StateLayout> layout_named(std::string_view name) {
  const auto* const found = std::ranges::find(state_layout_names, name);
  if (found == state_layout_names.end()) return {};
  return static_cast<StateLayout>(found - state_layout_names.begin());
}

void require_layout(StateLayout layout, DType working) {
  if (layout == StateLayout::split && working != DType::bf16)
    fail(fmt::format("--state-layout split keeps a master weight as a bf16 weight and a remainder, "
                     "and the weights of this run are {}; use --precision bf16 or another layout",
                     name_of(working)),
         ErrorKind::usage);
  if (working == DType::f64 && layout != StateLayout::fp32)
    fail("fp64 training keeps all of its state in fp64", ErrorKind::usage);
}

}  // namespace sluice
