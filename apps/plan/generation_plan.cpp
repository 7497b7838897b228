#include "apps/plan/generation_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/checkpoint/model_folder.h"
#include "apps/plan/memory_plan.h"
#include "engine/autograd.h"

namespace sluice {
namespace {

/// Counts what the generation takes with so many blocks in host memory, by computing the prompt, a
/// token, and the most that is computed at once later. `by_use` gets the bytes of each use on the
/// device, if asked for.
GenerationPlan count(const GenerationTask& task, std::int64_t host_blocks,
                     MemoryByUse* by_use = nullptr) {
  const DevicePtr device = make_meta_device(0, task.workspace);
  const HostMemory host = make_host_memory(device, 0);
  const LoadedModel made =
      make_model(task.config, device, task.dtype, ParameterSpace::Use::inference,
                 {.host_blocks = host_blocks, .host = host});
  const NoGrad no_grad;
  KeyValueCache cache;
  if (task.options.use_cache)
    cache = make_cache(*made.model, {{0, task.config.n_layer}}, device, task.dtype);
  const NextToken next = next_token(*made.model, device, task.options.sampling);
  const auto after = [&](std::size_t fresh) {
    next(std::vector<std::int32_t>(fresh), task.options.use_cache ? &cache : nullptr, 0);
  };
  const auto context = static_cast<std::size_t>(task.config.n_positions);
  const std::size_t prompt = std::min(task.prompt, context);
  const std::size_t end = prompt + static_cast<std::size_t>(task.options.max_tokens);
  after(prompt);
  if (task.options.use_cache) {
    after(1);
    cache.length = 0;  // as it is when the context is full, and its later half is computed again
    if (end > context) after((context + 1) / 2);
  } else {
    after(std::min(end, context));
  }
  if (by_use != nullptr) *by_use = device->arena().peak_by_use();
  GenerationPlan plan{.host_blocks = host_blocks,
                      .device = device->arena().high_water(),
                      .host = host.pinned->arena().high_water()};
  if (made.ring) {
    made.ring->take_moved();
    cache.length = 0;
    after(1);
    plan.copied = made.ring->take_moved().to_device;
  }
  return plan;
}

}  // namespace

GenerationPlan plan_generation(const GenerationTask& task, std::size_t allowed) {
  GenerationPlan plan = count(task, 0);
  if (plan.device <= allowed) return plan;
  std::int64_t too_few = 0, enough = task.config.n_layer;
  MemoryByUse by_use{};
  plan = count(task, enough, &by_use);
  if (plan.device > allowed)
    fail(fmt::format("with the weights of all blocks in host memory this still takes {} bytes of "
                     "GPU memory ({}), {} too many; give a shorter --context or use --device cpu",
                     plan.device, to_text(by_use), plan.device - allowed),
         ErrorKind::usage);
  while (enough - too_few > 1) {
    const std::int64_t middle = (too_few + enough) / 2;
    const GenerationPlan tried = count(task, middle);
    (tried.device <= allowed ? enough : too_few) = middle;
    if (tried.device <= allowed) plan = tried;
  }
  return plan;
}

}  // namespace sluice
