#include "optim/space/gradient_buffers.h"

#include "optim/space/parameter_space.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

// Where gradients are, whole or sharded. Sizes are in elements: all are multiples of the alignment.

namespace sluice::test::gradient_buffers_test {
namespace {

using Ranges = std::vector<SpaceRange>;

Parameter matrix(const char* name, std::int64_t rows, int section, bool embedding = false) {
  return {name, {rows, 64}, {}, nullptr, embedding, section};
}

/// A table, four sections, of which the third is the largest, and two vectors. The last one is a
/// section of its own.
SpaceLayout layout_of(bool narrow) {
  return SpaceLayout({matrix("table", 10, 0, true),
                      matrix("a", 64, 1),
                      matrix("b", 64, 2),
                      matrix("c", 128, 3),
                      matrix("d", 64, 4),
                      {"e", {64}, {}, nullptr, false, 4},
                      {"f", {64}, {}, nullptr, false, 5}},
                     {.narrow_gradients = narrow});
}
constexpr std::int64_t table = 640, small = 64 * 64, large = 128 * 64, vector = 64;
constexpr std::int64_t all = table + 3 * small + large + 2 * vector;

std::int64_t gradient_bytes(const DevicePtr& device) {
  const auto use = device->arena().peak_by_use()[static_cast<std::size_t>(MemoryUse::gradients)];
  return static_cast<std::int64_t>(use);
}

const std::byte* at(const Tensor& tensor) {
  return tensor.view().address;
}

}  // namespace

TEST_CASE("whole gradients lie in the order of the layout") {
  const SpaceLayout layout = layout_of(false);
  const DevicePtr device = make_cpu_device(1 << 20);
  const GradientBuffers buffers(layout, device, nullptr, DType::f32, DType::bf16, {});
  CHECK(gradient_bytes(device) == 4 * all);
  const Tensor whole = buffers.written(false, 0, all);
  for (const auto& slot : layout.slots) {
    const std::int64_t begin = slot.gradient_offset, end = begin + slot.size;
    CHECK(at(buffers.written(false, begin, end)) == at(whole) + 4 * begin);
    CHECK(at(buffers.kept(false, begin, end)) == at(whole) + 4 * begin);
    CHECK_FALSE(buffers.place_of(slot.section));
  }
}

TEST_CASE("sharded gradients take two places and what a rank keeps") {
  for (const bool narrow : {false, true}) {
    CAPTURE(narrow);
    const SpaceLayout layout = layout_of(narrow);
    const auto offset = [&](std::size_t slot) { return layout.slots[slot].offset; };
    // Half of the table, the end of b with the beginning of c, and the vector.
    const Ranges kept{{0, 320}, {offset(2) + 2048, offset(3) + 1024}, {offset(5), layout.size}};
    const DevicePtr device = make_cpu_device(1 << 20);
    const GradientBuffers buffers(layout, device, nullptr, DType::f32, DType::bf16, kept);
    // A kept part of the table is in the table itself, and so is that of the last vector.
    if (narrow)
      CHECK(gradient_bytes(device) ==
            4 * (table + vector + 2 * vector + vector) + 2 * (2 * large + 2048 + 1024));
    else
      CHECK(gradient_bytes(device) == 4 * (table + vector + 2 * large + 2048 + 1024 + vector));
    CHECK(buffers.dtype(true) == DType::bf16);
    CHECK_FALSE(buffers.place_of(0));
    for (const int section : {1, 2, 3, 4})
      CHECK(buffers.place_of(section) == (section % 2 == 1 ? 0U : 1U));
    CHECK_FALSE(buffers.place_of(5));

    const auto written = [&](std::size_t slot) {
      const auto& of = layout.slots[slot];
      return at(buffers.written(of.narrow, of.gradient_offset, of.gradient_offset + of.size));
    };
    CHECK(written(1) == written(3));  // sections 1 and 3
    CHECK(written(2) == written(4));  // sections 2 and 4
    const std::int64_t width = narrow ? 2 : 4;
    CHECK(written(2) - written(1) == large * width);

    // Nothing that is kept lies in a place.
    const auto& b = layout.slots[2];
    const auto& c = layout.slots[3];
    const std::byte* end_of_b =
        at(buffers.kept(b.narrow, b.gradient_offset + 2048, b.gradient_offset + small));
    const std::byte* start_of_c =
        at(buffers.kept(c.narrow, c.gradient_offset, c.gradient_offset + 1024));
    CHECK(end_of_b - written(2) >= large * width);
    CHECK(start_of_c == end_of_b + 2048 * width);
    CHECK(at(buffers.kept(false, 0, 320)) == written(0));
  }
}

TEST_CASE("a chunk of small parameters has its gradients in one piece") {
  // The table and the small matrix could be one chunk. Their gradients lie apart.
  Tensor table_weight, small_weight, matrix_weight;
  const ParameterSpace space({{"table", {10, 64}, {}, &table_weight, true, 0},
                              {"small", {10, 64}, {}, &small_weight, false, 1},
                              {"matrix", {64, 64}, {}, &matrix_weight, false, 1}},
                             make_cpu_device(1 << 20), DType::f32, ParameterSpace::Use::training,
                             {.owned = Ranges{{0, 1280 + small}}, .shard_gradients = true});
  std::int64_t elements = 0;
  for (const Chunk& chunk : space.chunks())
    elements += space.gradient_view(chunk).size();
  CHECK(elements == 1280 + small);
}

TEST_CASE("gradients that a rank does not have are not handed out") {
  const SpaceLayout layout = layout_of(false);
  const DevicePtr device = make_cpu_device(1 << 20);
  const GradientBuffers buffers(layout, device, nullptr, DType::f32, DType::bf16,
                                Ranges{{table, table + small}});
  const std::string why = "not in one piece here";
  const auto refused = [&](const auto& ask) {
    return error_message(ask).find(why) != std::string::npos;
  };
  CHECK_FALSE(refused([&] { buffers.kept(false, table, table + small); }));
  CHECK(refused([&] { buffers.kept(false, table, table + small + 64); }));
  CHECK(refused([&] { buffers.kept(false, 0, table); }));
  // Backward writes one section after the other, even where their places touch.
  CHECK(refused([&] { buffers.written(false, table, table + 2 * small); }));
  const auto two = [&](const Ranges& kept) {
    const SpaceLayout equal({matrix("a", 64, 1), matrix("b", 64, 2)}, {});
    GradientBuffers(equal, device, nullptr, DType::f32, DType::bf16, kept)
        .written(false, 0, 2 * small);
  };
  CHECK(refused([&] { two({{0, small}}); }));
}

}  // namespace sluice::test::gradient_buffers_test
