#pragma once

#include <string>

#include "apps/plan/cost/device_profile.h"
#include "bench/kernels/case.h"

namespace sluice::bench {

/// Predicts how long kernels take on a GPU that need not be there: from the rates that plans assume
/// for it, and from the instructions that apps/plan/cost/kernel_budget.json counts.
class Roofline {
 public:
  /// `chip` is a name that known_profile() takes. Throws Error (usage) for any other.
  explicit Roofline(const std::string& chip);

  const std::string& chip() const { return profile_.name; }
  /// Returns milliseconds, or 0 if nothing is known: attention with dropout, of another head size
  /// than 64 or in fp32; products in fp32 beside it.
  ///   memory:    bytes over the rate of a plain pass
  ///   product:   FLOP over the rate of large 16-bit products
  ///   attention: FLOP over a rate that was published for FlashAttention-2, times the instructions
  ///              of its inner loops over ours where instructions limit it
  double milliseconds(const Case& item, const Problem& problem, DType dtype) const;

 private:
  double attention_rate(bool backward) const;

  DeviceProfile profile_;
};

}  // namespace sluice::bench
