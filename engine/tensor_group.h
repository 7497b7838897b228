#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "engine/tensor.h"

namespace sluice {

/// A tensor-parallel group: the ranks that divide a model's matrices and compute on the same tokens
/// (Shoeybi et al., "Megatron-LM", 2019, section 3). An op that takes a group documents what it
/// sums or gathers over the ranks. All ranks call the same functions in the same order.
///
/// The residual stream between products, [B, T, width], is the same on all ranks, or they divide
/// its tokens (sequence parallelism; Korthikanti et al., "Reducing activation recomputation in
/// large transformer models", 2022, section 4.2): each rank has an equal contiguous part of its B *
/// T rows. An argument `tokens` is [B, T] if the stream is divided, else empty.
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts an all-reduce of `partial` (a reduce-scatter if the stream is divided), which nobody
  /// else may use. The returned function, called once, makes the stream wait and returns the sum:
  /// in the memory of `partial`, or this rank's rows. All ranks get the same bits. `what`: name for
  /// reports.
  virtual std::function<Tensor()> all_reduce(const Tensor& partial, const Shape& tokens,
                                             std::string_view what) = 0;
  /// Returns the whole stream (all-gather); `stream` itself if it is not divided.
  virtual Tensor all_gather(const Tensor& stream, const Shape& tokens, std::string_view what) = 0;
  /// Concatenates the elements of all ranks in rank order; counts[r] of them are rank r's.
  virtual Tensor gather(const Tensor& mine, std::span<const std::int64_t> counts,
                        std::string_view what) = 0;
};

/// One of the ranks that divide a model (tensor parallelism).
struct TensorShare {
  int rank = 0, size = 1;
  TensorGroup* group = nullptr;  ///< null: the share can be planned, but not computed with
  bool divides_tokens = false;   ///< sequence parallelism: ranks also divide the stream's tokens
};

}  // namespace sluice
