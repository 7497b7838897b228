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

TEST_CASE("rows of zeros follow a large table up to a multiple of 64") {
  const std::vector<Parameter> parameters{{"table", {70, 64}, {}, nullptr, true},
                                          {"matrix", {70, 64}, {}, nullptr},
                                          {"small table", {7, 64}, {}, nullptr, true}};
  const SpaceLayout layout(parameters, {});
  CHECK(layout.slots[0].spare_rows == 58);
  CHECK(layout.slots[0].size == 70 * 64);
  CHECK(layout.slots[1].offset == 128 * 64);
  CHECK(layout.slots[1].gradient_offset == 128 * 64);
  CHECK(layout.slots[1].spare_rows == 0);
  CHECK(layout.slots[2].offset == 198 * 64);
  CHECK(layout.slots[2].spare_rows == 0);
  CHECK(layout.size == 205 * 64);
  CHECK(layout.parameters == 147 * 64);
  CHECK(layout.stretches[0].size == 128 * 64);
}

}  // namespace sluice::test::space_layout_test
