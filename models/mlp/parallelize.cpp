#include "models/mlp/parallelize.h"

namespace sluice {

Tensor MlpStage::forward(int micro_batch, const Tensor& input) {
  const std::int64_t begin = micro_batch * batch_.split, rows = batch_.rows(micro_batch);
  const std::int64_t in = model_.config().in;
  const Tensor x = first_ == 0 ? batch_.x.slice(begin * in, {rows, in}) : input;
  const Tensor h = model_.hidden(x, first_, last_);
  if (last_ < model_.config().layers) return h;
  return model_.predict(h, batch_.targets.slice(begin, {rows}), batch_.loss).loss;
}

}  // namespace sluice
