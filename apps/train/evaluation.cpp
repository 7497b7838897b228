#include "apps/train/evaluation.h"

#include <algorithm>

#include "engine/autograd.h"
#include "kernels/cross_entropy.h"

namespace sluice {

EvaluationBatches::EvaluationBatches(std::int64_t tokens, std::int64_t sequences,
                                     std::int64_t seq_len, std::int64_t rows, std::int64_t row)
    : seq_len_(seq_len), stride_(row > 0 ? row : seq_len) {
  const std::int64_t all = std::min(sequences, (row > 0 ? tokens : tokens - 1) / stride_);
  rows_ = std::min(all, rows > 0 ? rows : rows_for(seq_len));
  count_ = rows_ > 0 ? (row > 0 ? all + rows_ - 1 : all) / rows_ : 0;
  sequences_ = std::min(all, rows_ * count_);
}

void EvaluationBatches::read(const TokenSource& tokens, std::int64_t batch,
                             Sequences& sequences) const {
  for (std::int64_t i = batch * rows_; i < (batch + 1) * rows_; ++i) {
    if (i < sequences_) {
      append_sequence(tokens, i * stride_, seq_len_, sequences);
      continue;
    }
    const auto length = static_cast<std::size_t>(seq_len_);
    if (sequences.documents.several())
      sequences.documents.starts.push_back(static_cast<std::int64_t>(sequences.tokens.size()));
    sequences.tokens.insert(sequences.tokens.end(), length, 0);
    sequences.targets.insert(sequences.targets.end(), length, no_target);
  }
}

std::int64_t EvaluationBatches::rows_for(std::int64_t seq_len) {
  return std::max<std::int64_t>(1, 1024 / seq_len);
}

std::int64_t EvaluationBatches::counted(const TokenSource& tokens) const {
  std::int64_t all = 0;
  for (std::int64_t i = 0; i < sequences(); ++i)
    all += counted_targets(tokens, i * stride_, seq_len_);
  return all;
}

double loss_of(const Decoder& model, const DevicePtr& device, const Sequences& sequences,
               std::int64_t rows) {
  const NoGrad no_grad;
  const auto count = static_cast<std::int64_t>(sequences.tokens.size());
  const auto on_device = [&](const std::vector<std::int32_t>& ids) {
    return Tensor::from_tokens(device, {rows, count / rows}, ids);
  };
  return model
      .loss(on_device(sequences.tokens), on_device(sequences.targets),
            {.scale = 1.0 / static_cast<double>(count)}, {}, sequences.documents)
      .loss.item();
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
