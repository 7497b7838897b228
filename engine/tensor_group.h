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
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts to add up, in place, what every rank has of a tensor; the sum has the same bits on all.
  /// What is returned waits for it, once. `what`: for reports.
  virtual std::function<void()> add_up(const Tensor& partial, std::string_view what) = 0;
  /// The elements of all ranks one after another; counts[r] of them are rank r's.
  virtual Tensor gather(const Tensor& mine, std::span<const std::int64_t> counts,
                        std::string_view what) = 0;
};

/// One of the ranks that divide a model.
struct TensorShare {
  int rank = 0, size = 1;
  TensorGroup* group = nullptr;  ///< none: what it has can be counted, not computed with
};

}  // namespace sluice
