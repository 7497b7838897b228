#include "models/gpt2/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/autograd.h"
#include "engine/rng.h"

namespace sluice {
namespace {

KeyValueCache make_cache(const GPT2Config& config, const DevicePtr& device, DType dtype) {
  KeyValueCache cache;
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    const Shape shape{1, config.n_positions, config.n_embd};
    cache.layers.push_back(
        {Tensor::empty(device, shape, dtype), Tensor::empty(device, shape, dtype)});
  }
  return cache;
}

/// The logits after the last of `tokens`.
std::vector<double> last_logits(const GPT2& model, const DevicePtr& device,
                                std::span<const std::int32_t> tokens, KeyValueCache* cache) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const Tensor hidden = model.hidden(Tensor::from_tokens(device, {1, count}, tokens), {}, cache);
  const std::int64_t width = hidden.dim(-1);
  return model.logits(hidden.slice((count - 1) * width, {1, width})).to_host();
}

/// Keeps the most probable tokens, as many as top_k and top_p allow, in falling order.
std::vector<std::size_t> candidates(std::span<const double> logits, const Sampling& sampling) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (sampling.top_k > 0)
    order.resize(std::min(order.size(), static_cast<std::size_t>(sampling.top_k)));
  return order;
}

}  // namespace

std::int32_t draw(std::span<const double> logits, const Sampling& sampling,
                  std::uint64_t position) {
  if (sampling.temperature <= 0)
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  std::vector<std::size_t> order = candidates(logits, sampling);
  std::vector<double> weights(order.size());
  double total = 0;
  for (std::size_t i = 0; i < order.size(); ++i)
    total += weights[i] = std::exp((logits[order[i]] - logits[order[0]]) / sampling.temperature);
  // Nucleus: the fewest tokens whose probability reaches top_p (Holtzman et al., 2020).
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < sampling.top_p * total))
    kept += weights[count++];
  double point = uniform(random_key(sampling.seed, "sampling"), position) * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    point -= weights[i];
    if (point < 0) return static_cast<std::int32_t>(order[i]);
  }
  return static_cast<std::int32_t>(order[count - 1]);
}

std::vector<std::int32_t> generate(const GPT2& model, const DevicePtr& device,
                                   std::span<const std::int32_t> prompt, const Generation& options,
                                   const std::function<bool(std::int32_t)>& on_token) {
  const NoGrad no_grad;
  const GPT2Config& config = model.config();
  check(!prompt.empty(), "generation needs a prompt of at least one token");
  for (const std::int32_t id : prompt)
    if (id < 0 || id >= config.vocab_size)
      fail(fmt::format("token {} of the prompt is not in the model's vocabulary of {}", id,
                       config.vocab_size),
           ErrorKind::usage);
  const auto context = static_cast<std::size_t>(config.n_positions);
  std::vector<std::int32_t> window(prompt.begin(), prompt.end());
  if (window.size() > context) window.erase(window.begin(), window.end() - config.n_positions);

  KeyValueCache cache;
  if (options.use_cache) cache = make_cache(config, device, model.dtype());
  std::size_t cached = 0;
  std::vector<std::int32_t> made;
  while (static_cast<std::int64_t>(made.size()) < options.max_tokens) {
    if (window.size() > context) {
      window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>((context + 1) / 2));
      cached = 0;
      cache.length = 0;
    }
    const auto fresh = std::span(window).subspan(cached);
    const auto logits = last_logits(model, device, fresh, options.use_cache ? &cache : nullptr);
    if (options.use_cache) cached = window.size();
    const std::int32_t next = draw(logits, options.sampling, made.size());
    made.push_back(next);
    window.push_back(next);
    if (on_token && !on_token(next)) break;
  }
  return made;
}

}  // namespace sluice
