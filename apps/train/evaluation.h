#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "apps/train/token_source.h"
#include "models/gpt2/gpt2.h"
#include "parallel/communicator.h"

// The loss on fixed tokens. How they are cut into batches follows from the tokens alone, not from
// the micro-batch of the training or the number of ranks, so neither changes a bit of it.

namespace sluice {

/// Consecutive whole sequences from the beginning of tokens, cut into batches of equal size.
/// Sequence i reads tokens [i*T, i*T + T], of which the last T are targets.
class EvaluationBatches {
 public:
  /// At most `sequences`, and at most as many as `tokens` tokens give, in batches of `rows`; 0:
  /// rows_for(). What does not fill a batch is left out, unless there is no more.
  EvaluationBatches(std::int64_t tokens, std::int64_t sequences, std::int64_t seq_len,
                    std::int64_t rows = 0);

  std::int64_t seq_len() const { return seq_len_; }
  std::int64_t rows() const { return rows_; }    ///< sequences of a batch
  std::int64_t count() const { return count_; }  ///< of batches
  std::int64_t sequences() const { return rows_ * count_; }
  std::int64_t tokens() const { return sequences() * seq_len_; }  ///< that are predicted

  /// As many sequences as are worth computing together: about 1024 tokens.
  static std::int64_t rows_for(std::int64_t seq_len);

 private:
  std::int64_t seq_len_, rows_, count_;
};

/// The mean cross-entropy in nats of `rows` sequences that follow each other in `ids`, which are
/// rows * T + 1 tokens; without gradients.
double loss_of(const GPT2& model, const DevicePtr& device, std::span<const std::int32_t> ids,
               std::int64_t rows);

/// Puts together what replicas have computed in turns: replica r of R has in `mine` the losses of
/// batches r, r + R, ... of `all`; where several ranks are one replica, one of them `answers`. All
/// ranks call it and get all losses, in order.
std::vector<double> gather_losses(Communicator& ranks, std::span<const double> mine,
                                  std::int64_t all, int replica, int replicas, bool answers);

}  // namespace sluice
