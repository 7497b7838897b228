#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "tests/kernels/attention_parts.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

// Ranks that each have a part of an op's work compute, laid side by side or added up, what one that
// has all of it does, bit for bit.

namespace sluice::test::parts_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

TEST_CASE("parts of an embedding's rows make up the whole", "[embedding]") {
  const std::int64_t batch = 2, length = 9, positions = 13, first_position = 3;
  const struct {
    std::int64_t width;
    std::vector<std::int64_t> rows;
  } cases[] = {{1, {3, 2, 2}}, {35, {3, 2, 2}}, {64, {1, 6}}, {8, {7}}};
  std::vector<std::int32_t> ids{0, 6, 3, 3, 2, 4, 5, 6, 1, 2, 6, 6, 0, 5, 3, 4, 2, 0};
  for (const DType dtype : dtypes) {
    for (const auto& [width, rows] : cases) {
      CAPTURE(name_of(dtype), width, rows);
      Array table(dtype, random_values(7 * width, 1));
      Array places(dtype, random_values(positions * width, 2));
      Array grad_out(dtype, random_values(batch * length * width, 3));
      const DType sums = accumulator_of(dtype);
      Array grad_table(sums, random_values(7 * width, 4));
      Array parts_of_grad = grad_table;
      Array grad_places(sums, random_values(positions * width, 5)), as_before = grad_places;
      const View tokens = view_of(ids, {batch, length});
      Array whole(dtype, batch * length * width);
      const auto rows_of = [&](Array& array, std::int64_t first, std::int64_t count) {
        return View(
            array.flat().address + static_cast<std::size_t>(first * width) * size_of(array.dtype()),
            array.dtype(), {count, width});
      };
      launch_cpu(EmbeddingForward{.out = whole.view({batch, length, width}),
                                  .tokens = tokens,
                                  .token_table = table.view({7, width}),
                                  .position_table = places.view({positions, width}),
                                  .first_position = first_position});
      launch_cpu(EmbeddingBackward{.grad_token_table = grad_table.view({7, width}),
                                   .grad_position_table = grad_places.view({positions, width}),
                                   .grad_out = grad_out.view({batch, length, width}),
                                   .tokens = tokens,
                                   .first_position = first_position});
      Values sum(static_cast<std::size_t>(batch * length * width));
      std::int64_t first_row = 0;
      for (const std::int64_t count : rows) {
        const bool first = first_row == 0;
        Array out(dtype, batch * length * width), part_of_places = as_before;
        launch_cpu(
            EmbeddingForward{.out = out.view({batch, length, width}),
                             .tokens = tokens,
                             .token_table = rows_of(table, first_row, count),
                             .position_table = first ? places.view({positions, width}) : View{},
                             .first_position = first_position,
                             .first_row = first_row});
        launch_cpu(EmbeddingBackward{.grad_token_table = rows_of(parts_of_grad, first_row, count),
                                     .grad_position_table = part_of_places.view({positions, width}),
                                     .grad_out = grad_out.view({batch, length, width}),
                                     .tokens = tokens,
                                     .first_position = first_position,
                                     .first_row = first_row});
        const Values values = out.values();
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] += values[i];
        CHECK(part_of_places.bytes() == grad_places.bytes());  // every rank has them all
        first_row += count;
      }
      CHECK(Array(dtype, sum).bytes() == whole.bytes());
      CHECK(parts_of_grad.bytes() == grad_table.bytes());
    }
  }
}

struct Host {
  Array array(DType dtype, const Values& values) { return {dtype, values}; }
  Stream stream() const { return {}; }
  void finish() {}
};

TEST_CASE("parts of the heads attend as the whole", "[attention]") {
  Host host;
  for (const DType dtype : dtypes)
    for (const std::int64_t head_width : {5, 64})
      check_parts_of_heads(host, dtype, head_width);
}

TEST_CASE("stretches of a batch drop the elements that the whole drops", "[elementwise]") {
  const DropoutMask mask{.key = 9, .probability = 0.3f, .first_sample = 7};
  // The last of them has samples of more elements than a task of the kernel.
  const struct {
    std::int64_t samples, size;
    std::vector<std::int64_t> cuts;
  } cases[] = {{3, 40, {0, 17, 61, 120}},
               {3, 40, {0, 1, 39, 40, 41, 120}},
               {3, 40, {0, 40, 80, 120}},
               {2, 9001, {0, 4097, 8193, 8999, 9003, 18002}}};
  for (const DType dtype : dtypes) {
    for (const auto& [samples, size, cuts] : cases) {
      CAPTURE(name_of(dtype), size, cuts);
      const std::int64_t count = samples * size;
      Array in(dtype, random_values(count, 1)), whole(dtype, count), parts(dtype, count);
      launch_cpu(Dropout{
          .out = whole.view({samples, size}), .in = in.view({samples, size}), .mask = mask});
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto offset = static_cast<std::size_t>(cuts[i]) * size_of(dtype);
        const auto stretch = [&](Array& array) {
          return View(array.flat().address + offset, dtype, {cuts[i + 1] - cuts[i]});
        };
        launch_cpu(Dropout{.out = stretch(parts),
                           .in = stretch(in),
                           .mask = mask,
                           .first = cuts[i],
                           .per_sample = size});
      }
      CHECK(parts.bytes() == whole.bytes());
      // Rows of a matrix, whose width is not that of a sample.
      Array rows(dtype, count - 20);
      const View source(in.flat().address + 10 * size_of(dtype), dtype, {(count - 20) / 2, 2});
      launch_cpu(Dropout{.out = rows.view({(count - 20) / 2, 2}),
                         .in = source,
                         .mask = mask,
                         .first = 10,
                         .per_sample = size});
      const Values values = whole.values();
      CHECK(rows.values() == Values(values.begin() + 10, values.end() - 10));
    }
  }
}

}  // namespace
}  // namespace sluice::test::parts_test
