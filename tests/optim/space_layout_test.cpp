#include "optim/space/space_layout.h"
#include "tests/support/catch.h"

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

TEST_CASE("a slot knows which part of each stored matrix a rank has") {
  const std::vector<StoredPart> parts{{"q", 8}, {"k", 4}, {"v", 4}};
  const Shard rows({16, 10}, 0, {{2, 4}, {6, 8}, {9, 10}, {12, 14}}),
      columns({16, 10}, 1, {{4, 7}});
  const auto matrices = [&](const Shard& shard) {
    const Shape shape = shard.divided() ? shard.shape() : Shape{16, 10};
    const SpaceLayout layout({{.name = "qkv",
                               .shape = shape,
                               .initial = {},
                               .tensor = nullptr,
                               .shard = shard,
                               .parts = parts}},
                             {});
    std::vector<std::vector<std::int64_t>> all;
    for (const MatrixShard& m : layout.slots.front().matrices())
      all.push_back({m.rows, m.columns, m.rows_here(), m.columns_here(), m.first});
    return all;
  };
  using All = std::vector<std::vector<std::int64_t>>;
  CHECK(matrices({}) == All{{8, 10, 8, 10, 0}, {4, 10, 4, 10, 0}, {4, 10, 4, 10, 0}});
  CHECK(matrices(columns) == All{{8, 10, 8, 3, 0}, {4, 10, 4, 3, 0}, {4, 10, 4, 3, 0}});
  // The rows of q are not contiguous.
  CHECK(matrices(rows) == All{{8, 10, 4, 10, -1}, {4, 10, 1, 10, 1}, {4, 10, 2, 10, 0}});
}

}  // namespace sluice::test::space_layout_test
