#include <algorithm>
#include <chrono>
#include <map>

#include "engine/autograd.h"
#include "engine/ops/linear/linear.h"
#include "parallel/data_parallel/gradient_reducer.h"
#include "tests/parallel/collective_counter.h"
#include "tests/parallel/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gradcheck.h"

// ZeRO-2: sections share two places for their gradients, and a rank keeps its part of the sums. All
// gradients are small whole numbers, so a sum is exact in whatever order it is formed.

namespace sluice::test::sharded_gradients_test {
namespace {

/// A table and three sections of different sizes. The second one has two matrices. A gap follows
/// those of 10,000 elements; d, whose gradients lie where those of a are later, has none.
struct Model {
  Tensor table, a, b, c, d;
  std::vector<Parameter> parameters() {
    const Initial initial = Initial::normal(1);
    return {{"t", {100, 100}, initial, &table, true, 0},
            {"a", {100, 100}, initial, &a, false, 1},
            {"b", {100, 100}, initial, &b, false, 2},
            {"c", {64, 100}, initial, &c, false, 2},
            {"d", {128, 100}, initial, &d, false, 3}};
  }
};

struct Case {
  int ranks = 2;
  DType dtype = DType::f32;
  std::size_t bucket = 1;
  bool overlap = true;
};

/// A rank that visits parameters in any order, as backward passes do.
class Rank {
 public:
  Rank(Communicator& ranks, const Case& of)
      : ranks_(ranks),
        device_(make_cpu_device(16 << 20)),
        buckets_(SpaceLayout(model_.parameters(), {.narrow_gradients = of.dtype == DType::bf16}),
                 {.ranks = of.ranks, .bucket_bytes = of.bucket, .by_section = true}),
        space_(model_.parameters(), device_, of.dtype, ParameterSpace::Use::training,
               {.narrow_gradients = of.dtype == DType::bf16,
                .owned = buckets_.owned(ranks.rank()),
                .shard_gradients = true}),
        reducer_(space_, buckets_, ranks, {.overlap = of.overlap}) {
    ranks.set_monitor(counter_);
    space_.initialize(1);
  }

  /// A step whose backward passes visit the parameters of `order`: one letter each.
  void step(const std::string& order) {
    space_.forget_gradients();
    expected_.clear();
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::string name(1, order[i]);
      const ParameterSpace::Slot& slot = *space_.find(name);
      if (order.find(order[i], i + 1) == std::string::npos)
        reducer_.expect({slot.offset, slot.offset + 1});
      visit(slot, 1 + static_cast<double>(i % 3));
    }
    reducer_.finish();
  }

  /// Returns true if the gradients of d are reduced while backward visits c, in a pass that is not
  /// the step's last.
  bool reduces_under_backward() {
    space_.forget_gradients();
    visit(*space_.find("d"), 1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (counter_->ended == 0 && std::chrono::steady_clock::now() < deadline)
      visit(*space_.find("c"), 0);
    const bool reduced = counter_->ended > 0;
    reducer_.expect();
    reducer_.finish();
    return reduced;
  }

  /// Requires the sums over ranks and visits in every element that this rank keeps. Gaps are zero.
  void expect_sums() const {
    const int ranks = ranks_.size();
    const double all_ranks = ranks * (ranks + 1) / 2.0;
    std::int64_t compared = 0;
    for (const SpaceRange& owned : buckets_.owned(ranks_.rank()))
      for (const auto& slot : space_.slots()) {
        const std::int64_t begin = std::max(owned.begin - slot.offset, std::int64_t{0});
        const std::int64_t end = std::min(owned.end - slot.offset, slot.padded_size);
        if (begin >= end) continue;
        const auto kept = space_.gradients().kept(slot.narrow, slot.gradient_offset + begin,
                                                  slot.gradient_offset + end);
        const Values found = kept.to_host();
        const auto visits = expected_.find(slot.name);
        const double factor = visits == expected_.end() ? 0 : visits->second;
        for (std::int64_t i = begin; i < end; ++i) {
          const double row = static_cast<double>(1 + i / slot.shape[1] % 3);
          const double wanted = i < slot.size ? factor * all_ranks * row : 0;
          expect(found[static_cast<std::size_t>(i - begin)] == wanted,
                 slot.name + "[" + std::to_string(i) + "] is another sum");
        }
        compared += end - begin;
      }
    expect(compared > 0, "a rank keeps some gradients");
  }

  std::uint64_t begun() const { return counter_->begun; }

 private:
  void visit(const ParameterSpace::Slot& slot, double factor) {
    const auto rows = slot.shape[0];
    Values input(static_cast<std::size_t>(rows));
    for (std::size_t row = 0; row < input.size(); ++row)
      input[row] = factor * (ranks_.rank() + 1) * static_cast<double>(1 + row % 3);
    const Tensor x = Tensor::from_host(device_, {1, rows}, space_.working().dtype(), input);
    const Tensor ones = Tensor::from_host(device_, {1, slot.shape[1]}, space_.working().dtype(),
                                          Values(static_cast<std::size_t>(slot.shape[1]), 1));
    backward(linear(x, *slot.tensor), ones);
    expected_[slot.name] += factor;
  }

  Communicator& ranks_;
  DevicePtr device_;
  Model model_;
  BucketPlan buckets_;
  ParameterSpace space_;
  GradientReducer reducer_;
  std::shared_ptr<CollectiveCounter> counter_ = std::make_shared<CollectiveCounter>();
  std::map<std::string, double> expected_;
};

constexpr std::size_t one_bucket = std::size_t{1} << 30;

}  // namespace

TEST_CASE("sharded gradients are the sums of ranks, in whichever order backward reaches sections",
          "[threads]") {
  const ThreadCount one(1);
  const std::vector<std::vector<std::string>> runs{
      {"dcbat", "dcbat"},
      {"dcbatdcbat", "dcbatdcbatdcbat"},
      {"ddccbbaatt"},               // layer by layer
      {"dbacbadct"},                // a section in two halves, as zero-bubble schedules have it
      {"dcba", "da", "t", "dcba"},  // sections that a step does not reach
      {"abcd", "dcba"}};
  for (const int ranks : {2, 3})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::size_t bucket : {std::size_t{1}, one_bucket})
        for (const bool overlap : {true, false})
          for (std::int64_t place = 0; const auto& steps : runs) {
            if (!in_form(2, {ranks, dtype == DType::f32, bucket == one_bucket, overlap, place++}))
              continue;
            CAPTURE(ranks, name_of(dtype), bucket, overlap, steps);
            on_ranks(ranks, [&](Communicator& among) {
              Rank rank(among, {ranks, dtype, bucket, overlap});
              for (const std::string& step : steps) {
                rank.step(step);
                rank.expect_sums();
              }
            });
            SUCCEED();
          }
}

TEST_CASE("reductions of every micro-batch progress under its backward pass", "[threads]") {
  const ThreadCount one(1);
  on_ranks(2, [](Communicator& among) {
    Rank rank(among, {.bucket = one_bucket});
    expect(rank.reduces_under_backward(), "d is reduced under the backward pass of c");
  });
  SUCCEED();
}

TEST_CASE("a section is reduced once for each visit after which backward moves on", "[threads]") {
  const ThreadCount one(1);
  const auto reductions = [](const std::string& step) {
    std::uint64_t begun = 0;
    on_ranks(2, [&](Communicator& among) {
      Rank rank(among, {.bucket = one_bucket});
      rank.step(step);
      if (among.rank() == 0) begun = rank.begun();
    });
    return begun;
  };
  CHECK(reductions("dcbat") == 4);             // three sections and the table
  CHECK(reductions("dcbatdcbatdcbat") == 10);  // the table once
  CHECK(reductions("dddcccbbbaaattt") == 4);
  CHECK(reductions("ddcbcbaatt") == 4);
  CHECK(reductions("da") == 3);
}

}  // namespace sluice::test::sharded_gradients_test
