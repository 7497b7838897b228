#include "apps/report/plan_advice.h"

#include <fmt/format.h>

#include "apps/plan/cost/cost_model.h"

namespace sluice {
namespace {

/// Products of 16-bit matrices are computed in tiles of so many columns at least.
constexpr std::int64_t tile = 64;
/// cuBLASLt has its fast kernels only for sizes that are multiples of this.
constexpr std::int64_t fast = 8;

std::string advice_on_width(std::int64_t width) {
  if (width % tile == 0) return {};
  const std::int64_t above = (width / tile + 1) * tile, below = above - tile;
  std::string text = fmt::format(
      "width {} is no multiple of {}: of the last tile of each product {:.0f} % is "
      "wasted, {:.1f} % of all;",
      width, tile, 100 * static_cast<double>(above - width) / tile,
      100 * static_cast<double>(above - width) / static_cast<double>(above));
  if (below > 0) text += fmt::format(" {} or", below);
  text += fmt::format(" {} would waste none", above);
  if (width % fast != 0)
    text += fmt::format("; the fast kernels are for multiples of {} alone", fast);
  return text;
}

/// Predicts the tokens a second of forward and backward passes of micro-batches `times` as large.
double rate_of(const RunSetup& setup, const DeviceProfile& profile, MemoryChoice choice,
               std::int64_t times) {
  choice.micro_batch *= times;
  const StepWork work{.batch = choice.micro_batch,
                      .seq_len = setup.trainer.seq_len,
                      .dtype = setup.precision.dtype,
                      .dropout = setup.trainer.dropout > 0};
  const PartTime pass =
      predict_part(setup.config, {0, setup.config.n_layer}, choice, work, profile);
  return static_cast<double>(choice.micro_batch * setup.trainer.seq_len) /
         (pass.forward + pass.backward);
}

std::string advice_on_batch(const RunSetup& setup, const DeviceProfile& profile,
                            const MemoryChoice& choice) {
  constexpr std::int64_t most = 16;
  constexpr double something = 1.1, nearly_all = 0.95;
  const double now = rate_of(setup, profile, choice, 1);
  const double best = rate_of(setup, profile, choice, most);
  if (best < something * now) return {};
  std::int64_t times = 2;
  while (times < most && rate_of(setup, profile, choice, times) < nearly_all * best)
    times *= 2;
  return fmt::format(
      "micro-batches of {} x {} tokens leave a part of the GPU idle: where memory allows {} x {}, "
      "passes would compute {:.1f} times the tokens a second",
      choice.micro_batch, setup.trainer.seq_len, times * choice.micro_batch, setup.trainer.seq_len,
      rate_of(setup, profile, choice, times) / now);
}

}  // namespace

std::vector<std::string> plan_advice(const RunSetup& setup, const DeviceProfile& profile,
                                     const MemoryChoice& choice) {
  if (!profile.gpu) return {};
  std::vector<std::string> all;
  const bool narrow = size_of(setup.precision.dtype) == 2;
  for (const std::string& text : {narrow ? advice_on_width(setup.config.n_embd) : std::string(),
                                  advice_on_batch(setup, profile, choice)})
    if (!text.empty()) all.push_back(text);
  return all;
}

}  // namespace sluice
