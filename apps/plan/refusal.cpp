#include "apps/plan/refusal.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "apps/cli/progress.h"
#include "apps/cli/sizes.h"
#include "apps/plan/memory_flags.h"
#include "apps/plan/planner.h"
#include "kernels/base/error.h"
#include "models/decoder/shard.h"
#include "models/lora/targets.h"

namespace sluice {

namespace {

/// Returns the memory of a training of adapters; none if it does not fit.
std::optional<std::size_t> memory_of(const TrainConfig& options, const RunSetup& setup,
                                     const DeviceProfile& profile) {
  constexpr int first[] = {0};
  if (!division_fault(setup.config, static_cast<int>(options.parallel.tp)).empty())
    return std::nullopt;
  try {
    require_lora_fits(setup.config, "--lora-rank");
    const Attempt attempt = try_plan(options, setup, profile, first);
    return attempt.plan ? std::optional(attempt.plan->memory.high_water) : std::nullopt;
  } catch (const Error&) {  // the model is too small for such adapters
    return std::nullopt;
  }
}

/// Says whether adapters could be trained where the whole model cannot, or beside a model in 8 bits
/// where they cannot beside one in 16.
std::string adapters_that_fit(const TrainConfig& options, const RunSetup& setup,
                              const DeviceProfile& profile) {
  // A model with random weights has nothing to adapt; of a published shape there are weights.
  if (options.model.name.empty() || options.parallel.sequence_parallel ||
      options.parallel.layer_major())
    return {};
  LoraConfig lora = setup.config.lora;
  std::vector<std::pair<LoraConfig, const char*>> choices;
  if (lora.rank == 0) {
    lora = {.rank = 16, .alpha = 32, .targets = lora_targets(setup.config, "all")};
    choices.emplace_back(lora, "--lora-rank 16, which trains adapters and not the weights,");
    lora.int8_base = true;
    choices.emplace_back(
        lora, "--lora-rank 16 --int8-base, which trains adapters beside weights of 8 bits,");
  } else if (!std::exchange(lora.int8_base, true)) {
    choices.emplace_back(lora, "--int8-base, which keeps the model's matrices in 8 bits,");
  }
  RunSetup less = setup.without_data();
  TrainConfig asked = options;
  for (const auto& [choice, words] : choices) {
    less.config.lora = choice;
    asked.adapter.rank = choice.rank;
    asked.adapter.int8_base = choice.int8_base;
    if (const auto bytes = memory_of(asked, less, profile))
      return fmt::format("; with {} it fits: {} of {} memory", words, format_bytes(*bytes),
                         profile.gpu ? "GPU" : "host");
  }
  return {};
}

}  // namespace

void refuse_plan(const TrainConfig& options, const RunSetup& setup, const MemoryChoice& nearest,
                 const MemoryPlan& memory, const Budgets& budgets, const DeviceProfile& profile,
                 const std::string& elsewhere) {
  const std::size_t device = memory.high_water + budgets.device_reserve;
  const std::size_t host = memory.host + budgets.host_reserve;
  const char* flag = profile.gpu ? "--gpu-memory" : "--host-memory";
  std::string text =
      fmt::format("the nearest that training comes to fitting is {}: ", to_flags(nearest));
  const std::size_t device_over = budgets.device_excess(memory.high_water);
  const std::size_t host_over = budgets.host_excess(memory.host);
  if (device_over > 0)
    text += fmt::format("{} bytes of {} memory ({}){}, {} too many; {} {} would do",
                        memory.high_water, profile.gpu ? "GPU" : "host", to_text(memory.by_use),
                        text_of_reserve(budgets, profile), device_over, flag, spell_bytes(device));
  if (host_over > 0)
    text += fmt::format(
        "{}{} bytes of host memory beside the process, {} too many; --host-memory {} would do",
        device_over > 0 ? "; and " : "", memory.host, host_over, spell_bytes(host));
  const bool divided = options.parallel.divides_state();
  if (device_over > 0 && host_over == 0 && profile.gpu && setup.config.lora.rank == 0 && divided)
    text += "; without --zero weights and gradients can be in host memory too";
  // A pipeline's micro-batch is not searched for.
  if (options.parallel.pipelined() && !options.batch.micro_batch && nearest.micro_batch > 1)
    text += fmt::format("; a --micro-batch smaller than {} takes less", nearest.micro_batch);
  const bool state_could_leave =
      options.memory.state_home.empty() && !requested_placement(options, setup).residency &&
      options.optimizer.kind != OptimizerKind::adafactor && !options.machine.cuda_graph;
  const std::size_t over = profile.gpu ? host_over : device_over;
  const std::size_t state = profile.gpu ? memory.visiting_state + memory.cpu_state
                                        : memory.by_use[static_cast<std::size_t>(MemoryUse::state)];
  if (state_could_leave && over > 0 && over <= state)
    text += "; with --state-home optimizer state can be on a disk";
  text += adapters_that_fit(options, setup, profile);
  if (!elsewhere.empty()) text += "; in the budget as it is: " + elsewhere;
  fail(text, ErrorKind::usage);
}

}  // namespace sluice
