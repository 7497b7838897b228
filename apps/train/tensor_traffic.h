#pragma once

#include <cstdint>

#include "apps/train/memory_choice.h"
#include "kernels/base/dtype.h"
#include "models/gpt2/gpt2.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"

namespace sluice {

/// What each of the ranks that divide the matrices of some blocks sends to and receives from the
/// others in a step (Shoeybi et al., "Megatron-LM: training multi-billion parameter language models
/// using model parallelism", 2019, section 3): forward, one sum behind the attention and one behind
/// the MLP of every block; backward, one of the input's gradient for each. Payload bytes are what
/// the operation is called with, on every rank alike.
struct TensorTraffic {
  struct Kind {
    std::int64_t operations = 0;
    std::uint64_t bytes = 0;  ///< of all operations together

    Kind& operator+=(const Kind& other);
    friend bool operator==(const Kind&, const Kind&) = default;
  };

  Kind forward{};   ///< all-reduces "embedding" and "output"
  Kind again{};     ///< the same in forward passes that backward runs once more
  Kind backward{};  ///< all-reduces "input gradient" of blocks
  Kind head{};      ///< all-reduces "input gradient" of the vocabulary head
  Kind gathers{};   ///< all-gathers "softmax": three numbers a token and rank

  Kind all_reduces() const;
  /// By each rank, in bytes: 2 (N-1)/N of what N ranks add up, (N-1)/N of what they gather.
  double sent(std::int64_t ranks) const;
  TensorTraffic& operator+=(const TensorTraffic& other);
  friend bool operator==(const TensorTraffic&, const TensorTraffic&) = default;
};

/// Of training steps alone: validation, samples and the norm come on top. `rows` sequences of
/// `seq_len` tokens make a micro-batch, of which a step has `micro_batches`; `dtype` is what the
/// model computes in. Nothing where the mesh has a `tp` of 1.
TensorTraffic tensor_traffic(const GPT2Config& config, const GPT2Part& part, const Mesh& mesh,
                             const MemoryChoice& choice, Stash stash, std::int64_t rows,
                             std::int64_t seq_len, DType dtype, std::int64_t micro_batches);

}  // namespace sluice
