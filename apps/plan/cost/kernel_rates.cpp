#include "apps/plan/cost/kernel_rates.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/plan/cost/kernel_budget.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

constexpr int measured_capability = 90;

/// Returns the entry of a pass: the first that is for this capability.
const nlohmann::json& entry(const nlohmann::json& budget, std::string_view pass, int capability) {
  for (const nlohmann::json& candidate : budget.at("passes"))
    if (candidate.at("pass") == pass && candidate.value("capability", 0) <= capability)
      return candidate;
  fail("kernel_budget.json has no pass " + std::string(pass), ErrorKind::runtime);
}

double share_of(const nlohmann::json& pass) {
  return pass.at(pass.contains("measured") ? "measured" : "predicted").get<double>();
}

KernelRates rates_for(int capability) {
  const auto budget = nlohmann::json::parse(kernel_budget);
  const auto memory = [&](std::string_view name) {
    const nlohmann::json& pass = entry(budget, name, capability);
    return KernelRates::Pass{.bytes = pass.at("bytes").get<double>(), .share = share_of(pass)};
  };
  const auto share = [&](std::string_view name) {
    return share_of(entry(budget, name, capability));
  };
  return {.layernorm_sum = memory("layernorm of a sum"),
          .layernorm_backward = memory("layernorm backward"),
          .gelu = memory("gelu"),
          .gelu_backward = memory("gelu backward"),
          .bias_gradient = memory("bias gradient"),
          .cross_entropy = memory("cross-entropy"),
          .embedding_backward = memory("embedding backward"),
          .products = share("products of a block"),
          .attention = share("attention"),
          .attention_backward = share("attention backward"),
          .attention_dropout = share("attention with dropout"),
          .attention_dropout_backward = share("attention backward with dropout")};
}

}  // namespace

const KernelRates& kernel_rates(int capability) {
  static const KernelRates as_measured = rates_for(measured_capability), earlier = rates_for(0);
  return capability >= measured_capability ? as_measured : earlier;
}

}  // namespace sluice
