#include <algorithm>
#include <cmath>
#include <map>

#include "optim/make_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/space.h"
#include "tests/support/training/tensor_ranks.h"

// Muon of ranks that divide matrices moves the weights as one process does.

namespace sluice::test::divided_muon_test {
namespace {

using Ranges = std::vector<Shard::Range>;

/// This rank's part of each of these widths, side by side.
Ranges parts_of(std::initializer_list<std::int64_t> widths, int rank, int ranks) {
  Ranges all;
  std::int64_t first = 0;
  for (const std::int64_t width : widths) {
    const Shard::Range part = part_of(width, rank, ranks);
    all.push_back({first + part.begin, first + part.end});
    first += width;
  }
  return all;
}

/// The matrices of blocks of every family, some of them divided unevenly by three ranks and more.
struct Model {
  std::vector<Tensor> tensors{8};
  ParameterSpace space;

  Model(const DevicePtr& device, DType working, int rank, int ranks, StateLayout layout)
      : space(declare(tensors, rank, ranks), device, working, ParameterSpace::Use::training,
              {.layout = layout, .whole_tensors = true}) {
    space.initialize(7);
  }

  static std::vector<Parameter> declare(std::vector<Tensor>& tensors, int rank, int ranks) {
    std::vector<Parameter> all;
    const auto add = [&](const char* name, const Shape& whole, int dimension, const Ranges& kept,
                         bool in_out) -> Parameter& {
      const Shard shard = ranks > 1 && dimension >= 0 ? Shard(whole, dimension, kept) : Shard();
      return all.emplace_back(Parameter{.name = name,
                                        .shape = shard.divided() ? shard.shape() : whole,
                                        .initial = Initial::normal(0.1),
                                        .tensor = &tensors[all.size()],
                                        .shard = shard,
                                        .in_out = in_out});
    };
    add("wte", {30, 24}, 0, parts_of({30}, rank, ranks), false).embedding = true;
    add("fused qkv", {64, 144}, 1, parts_of({48, 48, 48}, rank, ranks), true);
    add("rows", {96, 64}, 0, parts_of({96}, rank, ranks), true);
    add("square", {50, 50}, 0, parts_of({50}, rank, ranks), true);
    // Of k and v, which are wider than high, ranks have rows too.
    add("q, k, v", {110, 60}, 0, parts_of({70, 20, 20}, rank, ranks), false).parts = {
        {"q", 70}, {"k", 20}, {"v", 20}};
    add("narrow columns", {96, 40}, 1, parts_of({40}, rank, ranks), false);
    add("whole", {24, 33}, -1, {}, false);
    add("bias", {144}, 0, parts_of({48, 48, 48}, rank, ranks), false);
    return all;
  }

  void give_gradients(std::uint64_t step) {
    space.forget_gradients();
    std::uint64_t seed = 100 * step;
    for (const auto& slot : space.slots()) {
      const Values whole = random_values(element_count(slot.whole()), ++seed, 0.25);
      Values mine(static_cast<std::size_t>(slot.size));
      slot.shard.for_each_run(0, slot.size,
                              [&](std::int64_t place, std::int64_t index, std::int64_t count) {
                                std::copy_n(whole.begin() + index, count, mine.begin() + place);
                              });
      set_gradient(space, slot, mine);
    }
  }
  void add_weights(Assembled& all) {
    for (const auto& slot : space.slots())
      all.add(slot, flat_weights(space).slice(slot.offset, {slot.size}).to_host());
  }
};

struct Form {
  DType working = DType::f32;
  StateLayout layout = StateLayout::fp32;
  MuonScale scale = MuonScale::shape;
};

using Weights = std::map<std::string, Values>;

/// The whole weights after each number of steps, from none on.
std::vector<Weights> train(DeviceKind kind, int ranks, const Form& form, std::uint64_t steps) {
  std::vector<Assembled> weights(steps + 1);
  on_tensor_ranks(ranks, kind, [&](CommunicatorGroup& group, const DevicePtr& device) {
    Model model(device, form.working, group.rank(), ranks, form.layout);
    const auto optimizer =
        make_muon(model.space, {.weight_decay = 0.3,
                                .scale = form.scale,
                                .rate_factor = 3,
                                .sum = [&](const View& data, bool one_has, Stream) {
                                  group.sum(data, device, one_has, "orthogonalization");
                                }});
    model.add_weights(weights[0]);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      model.give_gradients(step);
      optimizer->step(0.01);
      model.add_weights(weights[step]);
    }
  });
  std::vector<Weights> all;
  for (const Assembled& step : weights) {
    CHECK(step.differences() == std::vector<std::string>());
    all.push_back(step.values());
  }
  return all;
}

double change(const Values& before, const Values& after) {
  double squares = 0;
  for (std::size_t i = 0; i < before.size(); ++i)
    squares += (after[i] - before[i]) * (after[i] - before[i]);
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE("Muon's updates do not depend on how many ranks divide the matrices",
          "[tensor][muon][threads]") {
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  for (const Form& form : {Form{.working = DType::f64},
                           {},
                           {.scale = MuonScale::rms},
                           {.working = DType::bf16},
                           {.working = DType::bf16, .layout = StateLayout::split}}) {
    if (kind == DeviceKind::cuda && form.working == DType::f64) continue;
    const auto alone = train(kind, 1, form, 4);
    const double bound = form.working == DType::f64    ? 1e-11
                         : form.working == DType::bf16 ? 2e-2
                                                       : 1e-5;
    for (const int ranks : {2, 3, 4}) {
      const auto divided = train(kind, ranks, form, 4);
      for (const auto& [name, before] : alone.front()) {
        CAPTURE(name_of(kind), name_of(form.working), ranks, name);
        REQUIRE(divided.front().at(name) == before);
        // One process uses the smaller Gram matrix, the ranks the larger one: 16-bit products
        // differ.
        const bool other_side = form.working == DType::bf16 && name == "narrow columns";
        CHECK(change(before, divided[1].at(name)) ==
              Approx(change(before, alone[1].at(name))).epsilon(other_side ? 5e-3 : 1e-3));
        CHECK(relative_l2(divided.back().at(name), alone.back().at(name)) <= bound);
      }
    }
  }
}

TEST_CASE("ranks sum A where it is smaller than the matrix, else the matrix", "[tensor][muon]") {
  using Cut = MatrixShard::Cut;
  struct Row {
    MatrixShard shard;
    std::int64_t operations, bytes, largest;
  };
  constexpr std::int64_t norm = 8;
  for (const auto& [shard, operations, bytes, largest] :
       {Row{{64, 192}, 0, 0, 0},
        {{64, 192, Cut::columns, 48}, 6, 5 * 64 * 64 * 4 + norm, 64 * 64 * 4},
        {{192, 64, Cut::rows, 48}, 6, 5 * 64 * 64 * 4 + norm, 64 * 64 * 4},
        {{64, 64, Cut::rows, 16}, 6, 5 * 64 * 64 * 4 + norm, 64 * 64 * 4},
        {{16, 64, Cut::rows, 4, 8}, 1, 16 * 64 * 4, 16 * 64 * 4},
        // The squares are summed in blocks of 2^16, as many as the whole matrix has.
        {{1024, 8, Cut::columns, 4}, 6, 5 * 1024 * 1024 * 4 + norm, 1024 * 1024 * 4},
        {{65536, 8, Cut::rows, 4}, 6, 5 * 64 * 4 + 8 * norm, 64 * 4}}) {
    CAPTURE(shard.rows, shard.columns, shard.count);
    const NewtonSchulz::Sums sums = NewtonSchulz(shard, DType::f32).sums();
    CHECK(sums.operations == operations);
    CHECK(sums.bytes == bytes);
    CHECK(sums.largest == largest);
  }
  // The gather takes contiguous rows alone.
  CHECK_THROWS_AS(NewtonSchulz({16, 64, Cut::rows, 4, -1}, DType::f32), Error);
  CHECK_THROWS_AS(NewtonSchulz({64, 16, Cut::rows, 0}, DType::f32), Error);
}

TEST_CASE("Muon needs sums where ranks divide matrices", "[tensor][muon]") {
  Model model(make_cpu_device(), DType::f32, 0, 2, StateLayout::fp32);
  CHECK_THROWS_AS(make_muon(model.space, {}), Error);
}

}  // namespace sluice::test::divided_muon_test
