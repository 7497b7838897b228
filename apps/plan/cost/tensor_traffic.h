#pragma once

#include <cstdint>

#include "apps/plan/cost/interconnect.h"
#include "apps/train/memory_choice.h"
#include "kernels/base/dtype.h"
#include "models/decoder/decoder.h"
#include "parallel/pipeline/executor.h"

namespace sluice {

/// The traffic of one step between tensor-parallel ranks, for each rank and some blocks (Shoeybi et
/// al., "Megatron-LM: training multi-billion parameter language models using model parallelism",
/// 2019, section 3). Forward: one sum after the attention and one after the MLP of every block.
/// Backward: one sum of the input's gradient for each. If the ranks also divide tokens, a sum is a
/// reduce-scatter, and inputs of products are all-gathered (Korthikanti et al., "Reducing
/// activation recomputation in large transformer models", 2022, section 4.2). Payload bytes are the
/// size that an operation is called with, equal on every rank.
struct TensorTraffic {
  struct Kind {
    std::int64_t operations = 0;
    std::uint64_t bytes = 0;  ///< of all operations together

    Kind& operator+=(const Kind& other);
    friend bool operator==(const Kind&, const Kind&) = default;
  };
  /// All-reduces; reduce-scatters if tokens are divided.
  struct Sums {
    Kind forward{};   ///< "embedding" and "output"
    Kind again{};     ///< the same in forward passes that backward repeats
    Kind backward{};  ///< "input gradient" of blocks
    Kind head{};      ///< "input gradient" of the vocabulary head
  };
  /// All-gathers, needed only if tokens are divided.
  struct Streams {
    Kind forward{};   ///< "input", including the head's
    Kind again{};     ///< the same in forward passes that backward repeats
    Kind backward{};  ///< "input", since it is not kept, and "output gradient"
  };

  bool divided_tokens = false;
  Sums sums{};
  Streams streams{};
  /// All-reduces "norm gradient": of the norms of q and k, and of all norms if tokens are divided.
  Kind norms{};
  /// All-gathers of k and v, and reduce-scatters of their gradients; needed only if ranks share
  /// heads of k and v.
  Streams key_values{};
  Kind softmax{};  ///< all-gathers of three numbers per token and rank
  Kind updates{};  ///< all-reduces "orthogonalization" of Muon, once a step

  Kind all_sums() const;
  Kind all_streams() const;
  Kind all_key_values() const;
  Kind all() const;
  /// Returns the bytes that each rank sends: 2 (N-1)/N of what N ranks all-reduce, (N-1)/N of what
  /// they scatter or gather.
  double sent(std::int64_t ranks) const;
  TensorTraffic& operator+=(const TensorTraffic& other);
};

/// One step of tensor-parallel ranks.
struct TensorTask {
  Shards shards{};
  Stash stash = Stash::graph;
  std::int64_t rows = 0, seq_len = 0;  ///< sequences of a micro-batch, tokens of each sequence
  DType dtype = DType::f32;            ///< of the model
  std::int64_t micro_batches = 1;
  bool orthogonalizes = false;  ///< the update rule is Muon
  std::int64_t owners = 1;      ///< replicas that share the updates (ZeRO), about equally
};

/// Counts training only, without validation, samples and the gradient norm. All zero for one rank.
TensorTraffic tensor_traffic(const DecoderConfig& config, const DecoderPart& part,
                             const MemoryChoice& choice, const TensorTask& task);

/// Predicts the seconds of operations that run one after the other.
class TensorTimes {
 public:
  explicit TensorTimes(const Shards& shards) : shards_(shards) {}

  double all_reduces(const TensorTraffic::Kind& kind) const { return 2 * gathers(kind); }
  double gathers(const TensorTraffic::Kind& kind) const;
  double sums(const TensorTraffic::Kind& kind) const {
    return shards_.divide_tokens ? gathers(kind) : all_reduces(kind);
  }
  double all(const TensorTraffic& traffic) const;

 private:
  Shards shards_;
};

}  // namespace sluice
