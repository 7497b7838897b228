#include "optim/space/space_layout.h"

#include <catch2/catch.hpp>

// Which parameters count as large matrices, whose state may be quantised and may stream.

namespace sluice::test::space_layout_test {

TEST_CASE("a matrix is large from 4096 elements on, whatever part of it a rank has") {
  const Shard half({64, 64}, 0, {{0, 32}});
  const std::vector<Parameter> parameters{{"large", {64, 64}, {}, nullptr},
                                          {"small", {63, 65}, {}, nullptr},
                                          {"table", {64, 64}, {}, nullptr, true},
                                          {"bias", {4096}, {}, nullptr},
                                          {"half", half.shape(), {}, nullptr, false, 0, half}};
  const SpaceLayout layout(parameters, {.narrow_gradients = true});
  std::string large;
  for (const auto& slot : layout.slots)
    if (slot.bulk) large += slot.name + " ";
  CHECK(large == "large half ");
  // Only their gradients are summed in 16 bits.
  CHECK(layout.narrow_size == 4096 + 2048);
}

}  // namespace sluice::test::space_layout_test
