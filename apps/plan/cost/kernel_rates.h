#pragma once

#include "apps/plan/cost/device_profile.h"

namespace sluice {

/// How fast this program's own kernels are on a GPU, as shares of the rates that a DeviceProfile
/// has. apps/plan/cost/kernel_budget.json holds the shares, measured on an H200 where possible.
struct KernelRates {
  /// A kernel that is bound by memory.
  struct Pass {
    double bytes = 0;  ///< read and written for each 16-bit element
    double share = 1;  ///< of the rate of a copy

    double seconds(double elements, const DeviceProfile& profile) const {
      return elements * bytes / (share * profile.memory_rate);
    }
  };

  Pass layernorm_sum{};  ///< LayerNorm with the residual sum before it
  Pass layernorm_backward{};
  Pass gelu{}, gelu_backward{};
  Pass bias_gradient{};
  Pass cross_entropy{};  ///< with its gradient; an element is a logit
  Pass embedding_backward{};
  /// Shares of the rate of a large product. The backward pass of attention computes seven products,
  /// of which five count as work.
  double products = 1;  ///< a block's products with weights
  double attention = 1, attention_backward = 1;
  double attention_dropout = 1, attention_dropout_backward = 1;
};

/// Returns the rates for GPUs of this compute capability (times ten). An H200 (9.0) was measured,
/// and later ones are taken to be like it. So are earlier ones, but for attention, which is
/// predicted.
const KernelRates& kernel_rates(int capability);

}  // namespace sluice
