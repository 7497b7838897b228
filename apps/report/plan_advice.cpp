#include "apps/report/plan_advice.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "apps/plan/cost/cost_model.h"

namespace sluice {
namespace {

/// Products of 16-bit matrices are computed in tiles of so many columns at least.
constexpr std::int64_t tile = 64;
/// cuBLASLt has its fast kernels only for sizes that are multiples of this.
constexpr std::int64_t fast = 8;

/// A rank of --tp has as many columns as `ranks` leave it.
std::string advice_on_width(const DecoderConfig& config, std::int64_t ranks) {
  const std::int64_t width = config.n_embd, columns = width / ranks;
  if (columns % tile == 0) return {};
  const std::int64_t tiles = (columns / tile + 1) * tile;
  std::string text = fmt::format(
      "width {}{} is no multiple of {}: of the last tile of each product {:.0f} % is wasted, "
      "{:.1f} "
      "% of all;",
      columns, ranks > 1 ? " on each rank of --tp" : "", tile,
      100 * static_cast<double>(tiles - columns) / tile,
      100 * static_cast<double>(tiles - columns) / static_cast<double>(tiles));
  // Widths that the heads divide too.
  const std::int64_t unit = std::lcm(tile * ranks, config.n_head);
  const std::int64_t below = width / unit * unit;
  if (below > 0) text += fmt::format(" --n-embd {} or", below);
  text += fmt::format(" {}{} would waste none", below > 0 ? "" : "--n-embd ", below + unit);
  if (columns % fast != 0)
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

std::string advice_on_batch(const TrainOptions& o, const RunSetup& setup,
                            const DeviceProfile& profile, const MemoryChoice& choice) {
  constexpr std::int64_t most = 16;
  constexpr double something = 1.1, nearly_all = 0.95;
  const double now = rate_of(setup, profile, choice, 1);
  const double best = rate_of(setup, profile, choice, most);
  if (best < something * now) return {};
  std::int64_t times = 2;
  while (times < most && rate_of(setup, profile, choice, times) < nearly_all * best)
    times *= 2;
  const std::int64_t rows = times * choice.micro_batch, batch = rows * o.dp.value_or(1);
  return fmt::format(
      "micro-batches of {} x {} tokens leave a part of the GPU idle: {} x {}{} would compute "
      "{:.1f} "
      "times the tokens a second, where memory allows",
      choice.micro_batch, setup.trainer.seq_len, rows, setup.trainer.seq_len,
      batch > o.batch_size ? fmt::format(" (--batch-size {} or more)", batch) : std::string(),
      rate_of(setup, profile, choice, times) / now);
}

}  // namespace

std::vector<std::string> plan_advice(const TrainOptions& o, const RunSetup& setup,
                                     const DeviceProfile& profile, const MemoryChoice& choice) {
  if (!profile.gpu) return {};
  std::vector<std::string> all;
  const auto add = [&](std::string text) {
    if (!text.empty()) all.push_back(std::move(text));
  };
  if (size_of(setup.precision.dtype) == 2) add(advice_on_width(setup.config, o.tp));
  // In a pipeline larger micro-batches are fewer, which its ranks wait for.
  if (!setup.pipeline) add(advice_on_batch(o, setup, profile, choice));
  return all;
}

}  // namespace sluice
