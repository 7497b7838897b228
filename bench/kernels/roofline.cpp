#include "bench/kernels/roofline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/plan/cost/kernel_budget.h"
#include "kernels/base/error.h"

namespace sluice::bench {
namespace {

/// FlashAttention-2's rates on an H100 (1024 positions, head size 64, causal; Shah et al.,
/// "FlashAttention-3", 2024, figure 5, and the backward pass from both passes' rate), and the
/// instructions of a warp in its inner loops, counted as kernel_budget counts.
constexpr double published_forward = 229e12, published_backward = 180e12;
constexpr double their_forward = 571, their_backward = 624;  // for 32 x 64 and 16 x 64 scores
/// FlashAttention-3's rate there.
constexpr double published_wgmma = 265e12;

/// On these the tensor cores limit attention; rates of all products that a kernel computes. The
/// backward pass computes seven, of which five count as work.
struct TensorBound {
  std::string_view chip;
  double rate;
};
constexpr TensorBound tensor_bound[] = {{"RTX 4090", 110e12}, {"RTX 2080 Ti", 24e12}};
constexpr double counted_share = 5.0 / 7;

/// Returns the instructions of the attention kernels with this unit, for sm_90 and bf16.
double instructions(std::string_view file, std::string_view unit_start) {
  double sum = 0;
  const auto budget = nlohmann::json::parse(kernel_budget);
  for (const auto& kernel : budget.at("kernels"))
    if (kernel.at("file") == file && kernel.at("cost").contains("sm_90") &&
        kernel.at("unit").get<std::string>().starts_with(unit_start))
      sum += kernel.at("cost").at("sm_90").at("instructions").get<double>();
  check(sum > 0, "kernel_budget.json counts the attention kernels");
  return sum;
}

}  // namespace

Roofline::Roofline(const std::string& chip) {
  try {
    profile_ = known_profile(chip);
  } catch (const Error&) {
    fail(fmt::format("--roofline: no figures are known for '{}'; they are for {}", chip,
                     fmt::join(known_profiles(), ", ")),
         ErrorKind::usage);
  }
}

double Roofline::attention_rate(bool backward) const {
  for (const TensorBound& bound : tensor_bound)
    if (bound.chip == profile_.name) return backward ? bound.rate * counted_share : bound.rate;
  if (profile_.capability != 90) return 0;
  return backward
             ? published_backward * their_backward / instructions("attention_backward", "16 x 64")
             : published_forward * their_forward / instructions("attention", "32 x 64");
}

double Roofline::milliseconds(const Case& item, const Problem& problem, DType dtype) const {
  double rate = 0;
  if (item.op == "attention") {
    const bool backward = item.variant == "backward";
    const bool known = (backward || item.variant == "forward") && dtype != DType::f32 &&
                       problem.dimensions.ends_with("x64");
    rate = known ? attention_rate(backward) : 0;
    if (item.variant == "forward_tma" && problem.dimensions.ends_with("x64"))
      rate = profile_.capability == 90 ? published_wgmma : 0;
  } else if (item.ceiling == Ceiling::gemm) {
    rate = dtype == DType::f32 ? 0 : profile_.narrow_flops;
  } else {
    return problem.bytes / profile_.memory_rate * 1e3;
  }
  return rate > 0 ? problem.flops / rate * 1e3 : 0;
}

}  // namespace sluice::bench
