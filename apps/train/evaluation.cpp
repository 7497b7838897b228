#include "apps/train/evaluation.h"

#include <algorithm>

#include "engine/autograd.h"

namespace sluice {

EvaluationBatches::EvaluationBatches(std::int64_t tokens, std::int64_t sequences,
                                     std::int64_t seq_len, std::int64_t rows)
    : seq_len_(seq_len) {
  const std::int64_t all = std::min(sequences, (tokens - 1) / seq_len);
  rows_ = std::min(all, rows > 0 ? rows : rows_for(seq_len));
  count_ = rows_ > 0 ? all / rows_ : 0;
}

std::int64_t EvaluationBatches::rows_for(std::int64_t seq_len) {
  return std::max<std::int64_t>(1, 1024 / seq_len);
}

double loss_of(const Decoder& model, const DevicePtr& device, std::span<const std::int32_t> ids,
               std::int64_t rows) {
  const NoGrad no_grad;
  const std::size_t count = ids.size() - 1;
  const auto from = [&](std::size_t first) {
    return Tensor::from_tokens(device, {rows, static_cast<std::int64_t>(count) / rows},
                               ids.subspan(first, count));
  };
  return model.loss(from(0), from(1), {.scale = 1.0 / static_cast<double>(count)}).loss.item();
}

std::vector<double> gather_losses(Communicator& ranks, std::span<const double> mine,
                                  std::int64_t all, int replica, int replicas, bool reports_loss) {
  std::vector<double> losses(static_cast<std::size_t>(all));
  for (std::size_t i = 0; i < mine.size() && reports_loss; ++i)
    losses[static_cast<std::size_t>(replica) + i * static_cast<std::size_t>(replicas)] = mine[i];
  // In every element of the sum one rank has a loss and the others zero, so the sum is exact.
  ranks
      .all_reduce({reinterpret_cast<std::byte*>(losses.data()), DType::f64, {all}},
                  {.label = "validation", .any_order = true})
      ->wait();
  return losses;
}

}  // namespace sluice
