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
  std::vector<KeyValueCache> caches;
  while (task.options.use_cache && caches.size() < task.at_once)
    caches.push_back(make_cache(*made.model, {{0, task.config.n_layer}}, device, task.dtype,
                                cache_positions(task.config, task.prompt, task.options)));
  const NextToken next = make_next_token(*made.model, device, task.options.sampling);
  const auto compute = [&](std::size_t fresh) {
    next(std::vector<std::int32_t>(fresh), task.options.use_cache ? &caches.back() : nullptr, 0);
  };
  const auto compute_together = [&] {
    std::vector<KeyValueCache*> all;
    for (KeyValueCache& cache : caches)
      all.push_back(&cache);
    draw_next(*made.model, device, std::vector<std::int32_t>(all.size()), all,
              std::vector(all.size(), Draw(task.options.sampling, 0)));
  };
  const auto context = static_cast<std::size_t>(task.config.longest_sequence());
  const std::size_t prompt = std::min(task.prompt, context);
  // The last token is drawn, and nothing is computed with it.
  const std::size_t end =
      prompt + static_cast<std::size_t>(std::max<std::int64_t>(task.options.max_tokens, 1)) - 1;
  // Prompts of one token are computed together too.
  if (prompt > 1 || !task.options.use_cache) compute(prompt);
  if (task.options.use_cache) {
    if (prompt == 1 || (end > prompt && prompt < context)) compute_together();
    caches.back().length = 0;  // as when the context is full, and its later half is computed again
    if (end > context) compute((context + 1) / 2);
  } else {
    compute(std::min(end, context));
  }
  if (by_use != nullptr) *by_use = device->arena().peak_by_use();
  GenerationPlan plan{.host_blocks = host_blocks,
                      .device = device->arena().high_water(),
                      .host = host.pinned->arena().high_water()};
  if (made.ring) {
    made.ring->take_moved();
    if (task.options.use_cache) caches.back().length = 0;
    compute(1);
    plan.copied_per_token = made.ring->take_moved().to_device;
  }
  return plan;
}

}  // namespace

GenerationPlan plan_generation(const GenerationTask& task, std::size_t allowed) {
  MemoryByUse by_use{}, by_use_least{};
  GenerationPlan plan = count(task, 0, &by_use);
  if (plan.device <= allowed) return plan;
  std::int64_t too_few = 0, enough = task.config.n_layer;
  const std::size_t whole = plan.device;
  plan = count(task, enough, &by_use_least);
  if (plan.device > allowed) {
    const bool helps = plan.device < whole;  // one or two blocks take two buffers
    const std::size_t least = std::min(plan.device, whole);
    fail(fmt::format("{}this takes {} bytes of GPU memory ({}), {} more than there are to take; "
                     "give fewer --max-tokens, a shorter prompt or --context, or use --device cpu",
                     helps ? "with the weights of all blocks in host memory " : "", least,
                     to_text(helps ? by_use_least : by_use), least - allowed),
         ErrorKind::usage);
  }
  while (enough - too_few > 1) {
    const std::int64_t middle = (too_few + enough) / 2;
    const GenerationPlan tried = count(task, middle);
    (tried.device <= allowed ? enough : too_few) = middle;
    if (tried.device <= allowed) plan = tried;
  }
  return plan;
}

}  // namespace sluice
