#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "engine/tensor.h"

namespace sluice {

/// Ranks that divide the matrices of a model between them and compute on the same tokens (Shoeybi
/// et al., "Megatron-LM", 2019, section 3). An op that is given the group says where their parts
/// meet. All of them call the same functions in the same order.
///
/// The stream between products, [B, T, width], is the same on all ranks, or they divide its tokens
/// (sequence parallelism; Korthikanti et al., "Reducing activation recomputation in large
/// transformer models", 2022, section 4.2): each has an equal stretch of its B * T rows. Where a
/// function takes `tokens`, that is [B, T] of a divided stream, or empty for one that is not.
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts to add up what every rank has of a tensor, of which nobody else may have use. What is
  /// returned waits for the sum, once, and returns it, the same bits on all ranks: in place of
  /// `partial`, or of a divided stream this rank's stretch. `what`: for reports.
  virtual std::function<Tensor()> add_up(const Tensor& partial, const Shape& tokens,
                                         std::string_view what) = 0;
  /// The whole of a stream: `stream` itself where it is not divided.
  virtual Tensor collect(const Tensor& stream, const Shape& tokens, std::string_view what) = 0;
  /// The elements of all ranks one after another; counts[r] of them are rank r's.
  virtual Tensor gather(const Tensor& mine, std::span<const std::int64_t> counts,
                        std::string_view what) = 0;
};

/// One of the ranks that divide a model.
struct TensorShare {
  int rank = 0, size = 1;
  TensorGroup* group = nullptr;  ///< none: what it has can be counted, not computed with
  bool divides_tokens = false;   ///< of the stream between products, where they divide
};

}  // namespace sluice
