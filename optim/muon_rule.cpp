#include "optim/muon_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/run.h"
#include "kernels/muon.h"

namespace sluice {
namespace {

/// Returns some elements of a one-dimensional View; none of a View that is not given.
View elements(const View& view, std::int64_t first, std::int64_t count) {
  if (!view) return {};
  return {
      view.address + first * static_cast<std::int64_t>(size_of(view.dtype)), view.dtype, {count}};
}

class MuonRule final : public UpdateRule {
 public:
  explicit MuonRule(const MuonOptions& options)
      : options_(options), adamw_(adamw_rule(options.adamw, StateLayout::fp32)) {}

  std::string_view name() const override { return "muon"; }

  std::vector<StateField> fields(const Chunk& chunk, DType sums) const override {
    if (!chunk.hidden) return adamw_->fields(chunk, sums);
    return {{"momentum", sums, chunk.size}};
  }

  std::int64_t scratch(const Chunk& chunk) const override {
    if (!chunk.hidden) return 0;
    std::int64_t bytes = 0;
    for (const MatrixShard& part : chunk.hidden->parts)
      bytes = std::max(bytes, NewtonSchulz(part, options_.products).bytes());
    return bytes / static_cast<std::int64_t>(sizeof(double));
  }

  void update(std::span<const ChunkViews> chunks, const UpdateStep& step,
              Stream stream) const override {
    std::vector<ChunkViews> others;
    for (const ChunkViews& views : chunks)
      if (!views.chunk.hidden) others.push_back(views);
    adamw_->update(others, step, stream);
    for (const ChunkViews& views : chunks) {
      std::int64_t first = 0;
      if (!views.chunk.hidden) continue;
      for (const MatrixShard& part : views.chunk.hidden->parts) {
        update_part(views, first, NewtonSchulz(part, options_.products), step, stream);
        first += part.rows_here() * part.columns_here();
      }
    }
  }

 private:
  /// Updates the part of a matrix that begins at element `first`.
  void update_part(const ChunkViews& views, std::int64_t first, const NewtonSchulz& products,
                   const UpdateStep& step, Stream stream) const {
    const MatrixShard& shard = products.shard();
    const std::int64_t count = shard.rows_here() * shard.columns_here();
    const auto of = [&](const View& view) { return elements(view, first, count); };
    std::byte* const memory = views.scratch.address;
    run(MuonMomentum{.direction = elements(products.matrix(memory), 0, count),
                     .first_moment = of(views.state[0]),
                     .grad = of(views.gradient),
                     .gradient_scale = step.gradient_scale,
                     .momentum = options_.momentum},
        stream);
    const View direction = products.run(memory, stream, options_.tf32, options_.sum);
    const double rate = step.rate * options_.rate_factor;
    run(MuonUpdate{.master = of(views.master),
                   .working = of(views.working),
                   .remainder = of(views.remainder),
                   .direction = elements(direction, 0, count),
                   .gradient_scale = step.gradient_scale,
                   .rate = rate,
                   .step = rate * scale_of(shard, views.chunk.hidden->in_out),
                   .weight_decay = views.chunk.decay ? options_.weight_decay : 0},
        stream);
  }

  double scale_of(const MatrixShard& matrix, bool in_out) const {
    const auto rows = static_cast<double>(matrix.rows);
    const auto columns = static_cast<double>(matrix.columns);
    if (options_.scale == MuonScale::rms) return 0.2 * std::sqrt(std::max(rows, columns));
    return std::sqrt(std::max(1.0, in_out ? columns / rows : rows / columns));
  }

  MuonOptions options_;
  std::unique_ptr<UpdateRule> adamw_;
};

}  // namespace

std::unique_ptr<UpdateRule> muon_rule(const MuonOptions& options) {
  return std::make_unique<MuonRule>(options);
}

DType muon_products(DType working) {
  return working == DType::bf16 ? working : accumulator_of(working);
}

std::vector<NewtonSchulz> muon_iterations(const SpaceLayout& layout, DType working) {
  std::vector<NewtonSchulz> iterations;
  for (const SpaceLayout::Slot& slot : layout.slots)
    if (slot.hidden())
      for (const MatrixShard& matrix : slot.matrices())
        iterations.emplace_back(matrix, muon_products(working));
  return iterations;
}

}  // namespace sluice
