#include "kernels/adamw.h"

#include <cmath>

#include "kernels/base/philox.h"
#include "kernels/base/run.h"
#include "optim/update_rule.h"

namespace sluice {
namespace {

/// Elements that share a scale if moments are quantised; a block never crosses a row.
constexpr std::int64_t scale_block = AdamW::block;

std::int64_t scale_blocks(const Chunk& chunk) {
  return chunk.size / chunk.row_length * ((chunk.row_length + scale_block - 1) / scale_block);
}

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const AdamWOptions& options, StateLayout layout) : options_(options), layout_(layout) {}

  std::string_view name() const override { return "adamw"; }

  std::vector<StateField> fields(const Chunk& chunk, DType sums) const override {
    if (chunk.bulk && layout_ == StateLayout::int8)
      return {{"first_moment", DType::u8, chunk.size},
              {"second_moment", DType::u8, chunk.size},
              {"first_scale", DType::f32, scale_blocks(chunk)},
              {"second_scale", DType::f32, scale_blocks(chunk)}};
    const bool narrow_first =
        chunk.bulk && (layout_ == StateLayout::bf16m || layout_ == StateLayout::bf16mv);
    const bool narrow_second = chunk.bulk && layout_ == StateLayout::bf16mv;
    return {{"first_moment", narrow_first ? DType::bf16 : sums, chunk.size},
            {"second_moment", narrow_second ? DType::bf16 : sums, chunk.size}};
  }

  void update(const ChunkViews& views, const UpdateStep& step, Stream stream) const override {
    const auto count = static_cast<double>(step.count);
    const bool quantised = views.state.size() == 4;
    run(AdamW{.master = views.master,
              .first_moment = views.state[0],
              .second_moment = views.state[1],
              .grad = views.gradient,
              .working = views.working,
              .remainder = views.remainder,
              .gradient_scale = step.gradient_scale,
              .first_scale = quantised ? views.state[2] : View{},
              .second_scale = quantised ? views.state[3] : View{},
              .row_length = quantised ? views.chunk.row_length : 0,
              .rounding_key = mix_key(0xADA, static_cast<std::uint64_t>(step.count)),
              .first_element = views.chunk.random_offset,
              .rate = step.rate,
              .beta1 = options_.beta1,
              .beta2 = options_.beta2,
              .epsilon = options_.epsilon,
              .weight_decay = views.chunk.decay ? options_.weight_decay : 0,
              .correction1 = 1 - std::pow(options_.beta1, count),
              .correction2 = 1 - std::pow(options_.beta2, count)},
        stream);
  }

 private:
  AdamWOptions options_;
  StateLayout layout_;
};

}  // namespace

std::unique_ptr<UpdateRule> adamw_rule(const AdamWOptions& options, StateLayout layout) {
  return std::make_unique<AdamWRule>(options, layout);
}

}  // namespace sluice
