#include "apps/report/plan_advice.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "apps/plan/cost/cost_model.h"

namespace sluice {
namespace {

/// Columns of a tile of a 16-bit matrix product; assumed, since cuBLASLt has tiles of several
/// sizes.
constexpr std::int64_t tile = 64;
/// cuBLASLt has its fast kernels only for sizes that are multiples of this.
constexpr std::int64_t fast = 8;

/// Returns advice on the width that each of `ranks` ranks of --tp has; empty if it fills its tiles.
std::string advice_on_width(const DecoderConfig& config, std::int64_t ranks) {
  const std::int64_t width = config.n_embd, columns = width / ranks;
  if (columns % tile == 0) return {};
  const std::int64_t tiles = (columns / tile + 1) * tile;
  const auto unused = static_cast<double>(tiles - columns);
  std::string text = fmt::format("width {}{} is no multiple of {}, and tiles of so many columns",
                                 columns, ranks > 1 ? " on each rank of --tp" : "", tile);
  text += fmt::format(" would waste {:.0f} % of the last one, {:.1f} % of all;",
                      100 * unused / tile, 100 * unused / static_cast<double>(tiles));
  // The heads must divide the width too.
  const std::int64_t unit = std::lcm(tile * ranks, config.n_head);
  const std::int64_t below = width / unit * unit;
  if (below > 0) text += fmt::format(" --n-embd {} or", below);
  text += fmt::format(" {}{} would waste none", below > 0 ? "" : "--n-embd ", below + unit);
  if (columns % fast != 0)
    text += fmt::format("; the fast kernels are for multiples of {} alone", fast);
  return text;
}

/// Predicts the tokens a second of forward and backward passes of micro-batches `times` as large.
double rate_of(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile,
               MemoryChoice choice, std::int64_t times) {
  choice.micro_batch *= times;
  const StepWork work{.batch = choice.micro_batch,
                      .seq_len = setup.trainer.seq_len,
                      .dtype = setup.precision.dtype,
                      .shards = shards_of(o.planning, o.parallel, profile),
                      .dropout = setup.trainer.drops_attention()};
  const PartTime pass =
      predict_part(setup.config, {0, setup.config.n_layer}, choice, work, profile);
  return static_cast<double>(choice.micro_batch * setup.trainer.seq_len) /
         (pass.forward + pass.backward);
}

std::string advice_on_batch(const TrainConfig& o, const RunSetup& setup,
                            const DeviceProfile& profile, const MemoryChoice& choice) {
  constexpr std::int64_t most = 16;
  constexpr double something = 1.1, nearly_all = 0.95;
  const auto rate = [&](std::int64_t times) { return rate_of(o, setup, profile, choice, times); };
  const double now = rate(1), best = rate(most);
  if (best < something * now) return {};
  std::int64_t times = 2;
  while (times < most && rate(times) < nearly_all * best)
    times *= 2;
  const std::int64_t rows = times * choice.micro_batch, batch = rows * o.parallel.dp.value_or(1);
  const std::string larger = fmt::format(
      "{} x {}{}", rows, setup.trainer.seq_len,
      batch > o.batch.size ? fmt::format(" (--batch-size {} or more)", batch) : std::string());
  return fmt::format(
      "micro-batches of {} x {} tokens leave a part of the GPU idle: {} would compute "
      "{:.1f} times the tokens a second, where memory allows",
      choice.micro_batch, setup.trainer.seq_len, larger, rate(times) / now);
}

}  // namespace

std::vector<std::string> plan_advice(const TrainConfig& o, const RunSetup& setup,
                                     const DeviceProfile& profile, const MemoryChoice& choice) {
  if (!profile.gpu) return {};
  std::vector<std::string> all;
  const auto add = [&](std::string text) {
    if (!text.empty()) all.push_back(std::move(text));
  };
  if (size_of(setup.precision.dtype) == 2) add(advice_on_width(setup.config, o.parallel.tp));
  // In a pipeline larger micro-batches are fewer, which its ranks wait for.
  if (!setup.pipeline) add(advice_on_batch(o, setup, profile, choice));
  return all;
}

std::string unusual_rate(const TrainConfig& o, double rate) {
  // AdamW's step is about the learning rate itself, Adafactor's is about the rate times the
  // weight's magnitude, and SGD's is the rate times the gradient.
  struct Usual {
    OptimizerKind optimizer;
    double low, high;
  };
  constexpr Usual usual[] = {{OptimizerKind::adamw, 1e-6, 1e-2},
                             {OptimizerKind::adamw8bit, 1e-6, 1e-2},
                             {OptimizerKind::adafactor, 1e-5, 1e-1},
                             {OptimizerKind::muon, 1e-6, 1e-1},
                             {OptimizerKind::sgd, 1e-4, 1}};
  const auto* const found = std::ranges::find(usual, o.optimizer.kind, &Usual::optimizer);
  if (rate == 0 || (rate >= found->low && rate <= found->high)) return {};
  return fmt::format("--lr {:g} is unusually {} for {}: usual is {:g} to {:g}; {}", rate,
                     rate < found->low ? "small" : "large", name_in(optimizers, o.optimizer.kind),
                     found->low, found->high,
                     rate < found->low ? "the model may learn nothing" : "the loss may diverge");
}

}  // namespace sluice
