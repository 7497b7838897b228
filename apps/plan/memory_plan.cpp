#include "apps/plan/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/progress.h"
#include "apps/train/training.h"
#include "engine/host_memory.h"
#include "engine/offload/file_memory.h"

namespace sluice {
namespace {

std::size_t state_in(const DeviceContext& memory) {
  return memory.arena().peak_by_use()[static_cast<std::size_t>(MemoryUse::state)];
}

HostMemory counted_host(const DevicePtr& device, const TrainConfig& options) {
  HostMemory host = make_host_memory(device, 0);
  if (!options.memory.state_home.empty()) host.file = std::make_shared<FileMemory>();
  return host;
}

struct MetaRun {
  MetaRun(const TrainConfig& options, const RunSetup& setup, const MemoryChoice& choice,
          std::size_t workspace_bytes, const MeshRank& at)
      : device(make_meta_device(0, workspace_bytes)),
        host(counted_host(device, options)),
        training(options, setup, choice, device, host, planned_ranks(at.mesh, at.rank)) {}

  MemoryPlan counted() const {
    return {.peak = device->arena().peak(),
            .high_water = device->arena().high_water(),
            .by_use = device->arena().peak_by_use(),
            .host = host.pinned->arena().high_water() + host.ordinary->arena().high_water(),
            .pinned = host.pinned->arena().high_water(),
            .file = host.file ? host.file->allocated() : 0,
            .visiting_state = state_in(*host.pinned),
            .cpu_state = state_in(*host.ordinary)};
  }

  DevicePtr device;
  HostMemory host;
  Training training;
};

/// Runs a validation with one batch per replica. A pipeline has several batches in flight, at most
/// as many as its stages and the messages between them hold.
void validate(const TrainConfig& o, const RunSetup& setup, MetaRun& run) {
  if (!setup.data.val) return;
  const auto evaluate = [&](const TokenSource& tokens, const EvaluationBatches& all) {
    const std::int64_t each = setup.pipeline ? 4 * setup.pipeline->schedule.stages : 1;
    const std::int64_t batches = std::min(all.count(), run.training.ranks.mesh.dp * each);
    run.training.trainer.evaluate(tokens, batches * all.rows());
  };
  evaluate(*setup.data.val, validation_batches(o, setup));
}

void sample(const TrainConfig& o, const RunSetup& setup, MetaRun& run) {
  const auto context = static_cast<std::size_t>(setup.config.longest_sequence());
  const std::size_t prompt = std::min(sample_prompt(o, setup).size(), context);
  Generation two{.max_tokens = o.evaluation.sample_tokens};
  two.positions = cache_positions(setup.config, prompt, two);
  two.max_tokens = 2;
  const auto begin = [&](std::size_t tokens) {
    run.training.sample(std::vector<std::int32_t>(tokens), two);
  };
  begin(prompt);
  // A text that outgrows the context is cut to its newer half, which is processed again. With its
  // last token nothing is computed.
  if (prompt + static_cast<std::size_t>(o.evaluation.sample_tokens) > context + 1)
    begin(context - context / 2);
}

}  // namespace

std::string to_text(const MemoryByUse& bytes) {
  std::string text;
  for (std::size_t use = 0; use < memory_uses; ++use)
    if (bytes[use] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<MemoryUse>(use)),
                          format_bytes(bytes[use]));
  return text;
}

MemoryPlan plan_memory(const TrainConfig& o, const RunSetup& setup, const MemoryChoice& choice,
                       std::size_t workspace_bytes, const MeshRank& at, std::int64_t updates) {
  MetaRun run(o, setup, choice, workspace_bytes, at);
  // The third micro-batch of an update needs the same memory as the second. In a pipeline more
  // micro-batches may be alive.
  const std::int64_t share = setup.trainer.batch_size / at.mesh.dp;
  const std::int64_t rows = setup.pipeline ? share : std::min(share, 2 * choice.micro_batch);
  const auto tokens = static_cast<std::size_t>(rows * setup.trainer.seq_len);
  const Batch batch{
      {.tokens = std::vector<std::int32_t>(tokens), .targets = std::vector<std::int32_t>(tokens)}};
  validate(o, setup, run);
  for (std::int64_t step = 0; step < updates; ++step) {
    run.training.trainer.step(step, batch);
    validate(o, setup, run);
    if (o.evaluation.sample_tokens > 0 && setup.can_sample) sample(o, setup, run);
  }
  return run.counted();
}

MemoryPlan plan_state(const TrainConfig& o, const RunSetup& setup, const MemoryChoice& choice,
                      std::size_t workspace_bytes, const MeshRank& at) {
  return MetaRun(o, setup, choice, workspace_bytes, at).counted();
}

}  // namespace sluice
