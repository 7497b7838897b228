#include "optim/muon_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/run.h"
#include "kernels/muon.h"
#include "optim/newton_schulz.h"

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
    for (const std::int64_t rows : chunk.hidden->part_rows)
      bytes = std::max(bytes, products_of(chunk, rows).bytes());
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
      for (const std::int64_t rows : views.chunk.hidden->part_rows) {
        update_part(views, first, products_of(views.chunk, rows), step, stream);
        first += rows * views.chunk.row_length;
      }
    }
  }

 private:
  NewtonSchulz products_of(const Chunk& chunk, std::int64_t rows) const {
    return {rows, chunk.row_length, options_.products};
  }

  /// Updates the part of a matrix that begins at element `first`.
  void update_part(const ChunkViews& views, std::int64_t first, const NewtonSchulz& products,
                   const UpdateStep& step, Stream stream) const {
    const std::int64_t count = products.rows() * products.columns();
    const auto of = [&](const View& view) { return elements(view, first, count); };
    std::byte* const memory = views.scratch.address;
    run(MuonMomentum{.direction = elements(products.matrix(memory), 0, count),
                     .first_moment = of(views.state[0]),
                     .grad = of(views.gradient),
                     .gradient_scale = step.gradient_scale,
                     .momentum = options_.momentum},
        stream);
    const View direction = products.run(memory, stream, options_.tf32);
    const double rate = step.rate * options_.rate_factor;
    run(MuonUpdate{.master = of(views.master),
                   .working = of(views.working),
                   .remainder = of(views.remainder),
                   .direction = elements(direction, 0, count),
                   .gradient_scale = step.gradient_scale,
                   .rate = rate,
                   .step = rate * scale_of(products, views.chunk.hidden->in_out),
                   .weight_decay = views.chunk.decay ? options_.weight_decay : 0},
        stream);
  }

  double scale_of(const NewtonSchulz& matrix, bool in_out) const {
    const auto rows = static_cast<double>(matrix.rows());
    const auto columns = static_cast<double>(matrix.columns());
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

}  // namespace sluice
