#pragma once

#include <cstdint>

#include "apps/train/interconnect.h"
#include "apps/train/memory_choice.h"
#include "kernels/base/dtype.h"
#include "models/gpt2/gpt2.h"
#include "parallel/pipeline/executor.h"

namespace sluice {

/// What each of the ranks that divide the matrices of some blocks sends to and receives from the
/// others in a step (Shoeybi et al., "Megatron-LM: training multi-billion parameter language models
/// using model parallelism", 2019, section 3): forward, one sum behind the attention and one behind
/// the MLP of every block; backward, one of the input's gradient for each. Where they divide tokens
/// too, a sum leaves each its own, and what goes into a product is collected (Korthikanti et al.,
/// "Reducing activation recomputation in large transformer models", 2022, section 4.2). Payload
/// bytes are what the operation is called with, on every rank alike.
struct TensorTraffic {
  struct Kind {
    std::int64_t operations = 0;
    std::uint64_t bytes = 0;  ///< of all operations together

    Kind& operator+=(const Kind& other);
    friend bool operator==(const Kind&, const Kind&) = default;
  };
  /// All-reduces; of divided tokens reduce-scatters.
  struct Sums {
    Kind forward{};   ///< "embedding" and "output"
    Kind again{};     ///< the same in forward passes that backward runs once more
    Kind backward{};  ///< "input gradient" of blocks
    Kind head{};      ///< "input gradient" of the vocabulary head
  };
  /// All-gathers of divided tokens.
  struct Streams {
    Kind forward{};   ///< "input", the head's too
    Kind again{};     ///< the same in forward passes that backward runs once more
    Kind backward{};  ///< "input", which is not kept, and "output gradient"
  };

  bool divided_tokens = false;
  Sums sums{};
  Streams streams{};
  Kind norms{};    ///< all-reduces "norm gradient" of divided tokens
  Kind softmax{};  ///< all-gathers: three numbers a token and rank

  Kind all_sums() const;
  Kind all_streams() const;
  Kind all() const;
  /// By each rank, in bytes: 2 (N-1)/N of what N ranks all-reduce, (N-1)/N of what they scatter or
  /// gather.
  double sent(std::int64_t ranks) const;
  TensorTraffic& operator+=(const TensorTraffic& other);
};

/// The step of some ranks that divide matrices.
struct TensorTask {
  Shards shards{};
  Stash stash = Stash::graph;
  std::int64_t rows = 0, seq_len = 0;  ///< of a micro-batch: sequences, tokens of each
  DType dtype = DType::f32;            ///< of the model
  std::int64_t micro_batches = 1;
};

/// Of training alone: validation, samples and the norm come on top. Nothing of one rank.
TensorTraffic tensor_traffic(const GPT2Config& config, const GPT2Part& part,
                             const MemoryChoice& choice, const TensorTask& task);

/// Seconds of operations of one kind, one after the other.
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
