#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "apps/data/tokens/token_source.h"
#include "models/decoder/decoder.h"
#include "parallel/comm/communicator.h"

// These functions compute the loss on fixed tokens. How tokens are cut into batches does not depend
// on the training's micro-batch or the number of ranks, so neither changes a bit of the loss.

namespace sluice {

/// Whole consecutive sequences from the beginning of the tokens, cut into batches of equal size.
/// Sequence i reads tokens [i*T, i*T + T], of which the last T are targets (T: `seq_len`), or row i
/// (TokenSource::row).
class EvaluationBatches {
 public:
  /// Takes at most `sequences` sequences, as far as `tokens` tokens go, in batches of `rows` (0:
  /// rows_for()). Drops an incomplete last batch of a text, unless it is the only one; one of rows
  /// is filled up with sequences of which nothing counts.
  EvaluationBatches(std::int64_t tokens, std::int64_t sequences, std::int64_t seq_len,
                    std::int64_t rows = 0, std::int64_t row = 0);
  EvaluationBatches(const TokenSource& tokens, std::int64_t sequences, std::int64_t seq_len)
      : EvaluationBatches(tokens.size(), sequences, seq_len, 0, tokens.row()) {}

  std::int64_t seq_len() const { return seq_len_; }
  std::int64_t rows() const { return rows_; }    ///< sequences per batch
  std::int64_t count() const { return count_; }  ///< number of batches
  std::int64_t sequences() const { return sequences_; }
  std::int64_t tokens() const { return sequences_ * seq_len_; }  ///< predicted tokens
  /// Appends a batch.
  void read(const TokenSource& tokens, std::int64_t batch, Sequences& sequences) const;
  /// Returns how many of the predicted tokens count.
  std::int64_t counted(const TokenSource& tokens) const;

  /// Returns the number of sequences worth computing together: about 1024 tokens.
  static std::int64_t rows_for(std::int64_t seq_len);

 private:
  std::int64_t seq_len_, stride_, rows_, count_, sequences_;
};

/// Returns the sum of the cross-entropy in nats of `rows` sequences, divided by all their targets,
/// without gradients.
double loss_of(const Decoder& model, const DevicePtr& device, const Sequences& sequences,
               std::int64_t rows);

/// Collects the losses of `all` batches, which the replicas share: `mine` has replica r's losses of
/// batches r, r + R, ... of R replicas. If several ranks form a replica, one of them has
/// `reports_loss`. All ranks call it and get all losses, in the order of the batches.
std::vector<double> gather_losses(Communicator& ranks, std::span<const double> mine,
                                  std::int64_t all, int replica, int replicas, bool reports_loss);

}  // namespace sluice
