#pragma once

#include <algorithm>
#include <cstdint>

#include "models/mlp/mlp.h"
#include "parallel/pipeline/stage.h"

namespace sluice {

/// The data that an MLP computes on. Its rows are consecutive micro-batches, of which the last may
/// be smaller.
struct MlpBatch {
  Tensor x;                ///< [rows, in]
  Tensor targets;          ///< [rows] i32
  std::int64_t split = 1;  ///< rows of a micro-batch
  LinearCrossEntropyOptions loss{};

  int micro_batches() const { return static_cast<int>((x.dim(0) + split - 1) / split); }
  std::int64_t rows(int micro_batch) const {
    return std::min(split, x.dim(0) - micro_batch * split);
  }
};

/// Layers [first, last) of an MLP as a pipeline stage; the last stage computes the loss.
class MlpStage final : public Stage {
 public:
  /// `batch` may change between steps. All arguments must outlive the stage.
  MlpStage(const Mlp& model, std::int64_t first, std::int64_t last, const MlpBatch& batch)
      : model_(model), first_(first), last_(last), batch_(batch) {}

  Boundary input(int micro_batch) const override {
    return {{batch_.rows(micro_batch), model_.config().width}, batch_.x.dtype()};
  }
  Boundary output(int micro_batch) const override { return input(micro_batch); }
  Tensor forward(int micro_batch, const Tensor& input) override {
    const std::int64_t begin = micro_batch * batch_.split, rows = batch_.rows(micro_batch);
    const std::int64_t in = model_.config().in;
    const Tensor x = first_ == 0 ? batch_.x.slice(begin * in, {rows, in}) : input;
    const Tensor h = model_.hidden(x, first_, last_);
    if (last_ < model_.config().layers) return h;
    return model_.predict(h, batch_.targets.slice(begin, {rows}), batch_.loss).loss;
  }

 private:
  const Mlp& model_;
  std::int64_t first_, last_;
  const MlpBatch& batch_;
};

}  // namespace sluice
