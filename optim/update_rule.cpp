#include "optim/update_rule.h"

#include <cmath>
#include <vector>

#include "kernels/adafactor.h"
#include "kernels/adamw.h"
#include "kernels/base/philox.h"
#include "kernels/base/run.h"
#include "kernels/sgd.h"

namespace sluice {
namespace {

/// Returns the number of blocks with a common scale if moments are quantised. No block crosses a
/// row.
std::int64_t scale_blocks(const Chunk& chunk) {
  return chunk.size / chunk.row_length * ((chunk.row_length + AdamW::block - 1) / AdamW::block);
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

  void update(std::span<const ChunkViews> chunks, const UpdateStep& step,
              Stream stream) const override {
    const auto count = static_cast<double>(step.count);
    std::vector<AdamW> updates;
    for (const ChunkViews& views : chunks) {
      const bool quantised = views.state.size() == 4;
      updates.push_back({.master = views.master,
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
                         .correction2 = 1 - std::pow(options_.beta2, count)});
    }
    run(AdamWBatch{updates}, stream);
  }

 private:
  AdamWOptions options_;
  StateLayout layout_;
};

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(const SgdOptions& options) : options_(options) {}

  std::string_view name() const override { return "sgd"; }

  std::vector<StateField> fields(const Chunk& chunk, DType sums) const override {
    return {{"velocity", sums, chunk.size}};
  }

  void update(std::span<const ChunkViews> chunks, const UpdateStep& step,
              Stream stream) const override {
    for (const ChunkViews& views : chunks) {
      check(!views.remainder, "SGD updates whole master weights; it has no split ones");
      run(Sgd{.master = views.master,
              .velocity = views.state[0],
              .grad = views.gradient,
              .working = views.working,
              .gradient_scale = step.gradient_scale,
              .rate = step.rate,
              .momentum = options_.momentum,
              .weight_decay = views.chunk.decay ? options_.weight_decay : 0},
          stream);
    }
  }

 private:
  SgdOptions options_;
};

class AdafactorRule final : public UpdateRule {
 public:
  explicit AdafactorRule(const AdafactorOptions& options) : options_(options) {}

  std::string_view name() const override { return "adafactor"; }

  std::vector<StateField> fields(const Chunk& chunk, DType sums) const override {
    if (chunk.row_length == 0) return {{"second_moment", sums, chunk.size}};
    return {{"row_second_moment", sums, chunk.size / chunk.row_length},
            {"column_second_moment", sums, chunk.row_length}};
  }

  std::int64_t scratch(const Chunk& chunk) const override {
    const std::int64_t columns = chunk.row_length > 0 ? chunk.row_length : chunk.size;
    return AdafactorBlocks{.rows = chunk.size / columns, .columns = columns}.size();
  }

  void update(std::span<const ChunkViews> chunks, const UpdateStep& step,
              Stream stream) const override {
    const auto count = static_cast<double>(step.count);
    for (const ChunkViews& views : chunks)
      run(Adafactor{.master = views.master,
                    .working = views.working,
                    .remainder = views.remainder,
                    .row_moment = views.state.size() == 2 ? views.state.front() : View{},
                    .column_moment = views.state.back(),
                    .grad = views.gradient,
                    .scratch = views.scratch,
                    .gradient_scale = step.gradient_scale,
                    .rate = step.rate,
                    .beta2 = 1 - std::pow(count, -options_.decay_power),
                    .epsilon1 = options_.epsilon1,
                    .epsilon2 = options_.epsilon2,
                    .clip = options_.clip,
                    .weight_decay = views.chunk.decay ? options_.weight_decay : 0,
                    .scale_by_weights = options_.scale_by_weights},
          stream);
  }

 private:
  AdafactorOptions options_;
};

}  // namespace

std::unique_ptr<UpdateRule> adamw_rule(const AdamWOptions& options, StateLayout layout) {
  return std::make_unique<AdamWRule>(options, layout);
}

std::unique_ptr<UpdateRule> sgd_rule(const SgdOptions& options) {
  return std::make_unique<SgdRule>(options);
}

std::unique_ptr<UpdateRule> adafactor_rule(const AdafactorOptions& options) {
  return std::make_unique<AdafactorRule>(options);
}

}  // namespace sluice
