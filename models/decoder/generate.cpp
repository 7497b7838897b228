#include "models/decoder/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/sample.h"

namespace sluice {
namespace {

/// Returns the logits after the last of `tokens`: [1, vocabulary].
Tensor last_logits(const Decoder& model, const DevicePtr& device,
                   std::span<const std::int32_t> tokens, KeyValueCache* cache) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const Tensor hidden = model.hidden(Tensor::from_tokens(device, {1, count}, tokens), {}, cache);
  const std::int64_t width = hidden.dim(-1);
  return model.logits_of_token(hidden.slice((count - 1) * width, {1, width}));
}

}  // namespace

std::int32_t draw(const Tensor& logits, const Sampling& sampling, std::uint64_t position) {
  const DevicePtr& device = logits.device();
  if (logits.dtype() != DType::f32) {
    const Tensor narrow = Tensor::empty(device, logits.shape(), DType::f32);
    run(Cast{.out = narrow.view(), .in = logits.view()}, logits.stream());
    return draw(narrow, sampling, position);
  }
  const double point = uniform(random_key(sampling.seed, "sampling"), position);
  const Tensor points = Tensor::from_host(device, {1}, DType::f32, {&point, 1});
  const Tensor token = Tensor::empty(device, {1}, DType::i32);
  const std::int64_t known =
      sampling.vocabulary > 0 ? std::min(sampling.vocabulary, logits.size()) : logits.size();
  run(SampleToken{.tokens = token.view(),
                  .logits = logits.slice(0, {1, known}).view(),
                  .points = points.view(),
                  .temperature = static_cast<float>(sampling.temperature),
                  .top_k = sampling.top_k,
                  .top_p = static_cast<float>(sampling.top_p)},
      logits.stream());
  return static_cast<std::int32_t>(token.item());
}

NextToken make_next_token(const Decoder& model, const DevicePtr& device, const Sampling& sampling) {
  return [&model, &device, sampling](std::span<const std::int32_t> fresh, KeyValueCache* cache,
                                     std::size_t position) {
    return draw(last_logits(model, device, fresh, cache), sampling, position);
  };
}

std::int64_t cache_positions(const DecoderConfig& config, std::size_t prompt,
                             const Generation& options) {
  if (options.positions > 0) return options.positions;
  return std::min(config.n_positions, static_cast<std::int64_t>(prompt) + options.max_tokens);
}

KeyValueCache make_cache(const Decoder& model, const std::vector<DecoderPart>& parts,
                         const DevicePtr& device, DType dtype, std::int64_t positions) {
  KeyValueCache cache;
  const DecoderConfig& config = model.config();
  cache.layers.resize(static_cast<std::size_t>(config.n_layer));
  const Shape shape{1, positions,
                    model.shard().attention_heads().key_value * config.width_of_head()};
  for (const DecoderPart& part : parts)
    for (std::int64_t layer = part.first; layer < part.last; ++layer)
      cache.layers[static_cast<std::size_t>(layer)] = {Tensor::empty(device, shape, dtype),
                                                       Tensor::empty(device, shape, dtype)};
  return cache;
}

void require_tokens(const DecoderConfig& config, std::span<const std::int32_t> tokens) {
  for (const std::int32_t id : tokens)
    if (id < 0 || id >= config.vocab_size)
      fail(fmt::format("token {} of the prompt is not in the model's vocabulary of {}", id,
                       config.vocab_size),
           ErrorKind::usage);
}

std::vector<std::int32_t> generate(const DecoderConfig& config, const NextToken& next,
                                   KeyValueCache* cache, std::span<const std::int32_t> prompt,
                                   std::int64_t max_tokens,
                                   const std::function<bool(std::int32_t)>& on_token) {
  check(!prompt.empty(), "generation needs a prompt of at least one token");
  require_tokens(config, prompt);
  const auto context = static_cast<std::size_t>(config.n_positions);
  std::vector<std::int32_t> window(prompt.begin(), prompt.end());
  if (window.size() > context) window.erase(window.begin(), window.end() - config.n_positions);

  std::size_t cached = 0;
  std::vector<std::int32_t> made;
  while (static_cast<std::int64_t>(made.size()) < max_tokens) {
    if (window.size() > context) {
      window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>((context + 1) / 2));
      cached = 0;
      if (cache != nullptr) cache->length = 0;
    }
    const std::int32_t token = next(std::span(window).subspan(cached), cache, made.size());
    if (cache != nullptr) cached = window.size();
    made.push_back(token);
    window.push_back(token);
    if (on_token && !on_token(token)) break;
  }
  return made;
}

std::vector<std::int32_t> generate(const Decoder& model, const DevicePtr& device,
                                   std::span<const std::int32_t> prompt, const Generation& options,
                                   const std::function<bool(std::int32_t)>& on_token) {
  const NoGrad no_grad;
  KeyValueCache cache;
  if (options.use_cache)
    cache = make_cache(model, {{0, model.config().n_layer}}, device, model.dtype(),
                       cache_positions(model.config(), prompt.size(), options));
  return generate(model.config(), make_next_token(model, device, options.sampling),
                  options.use_cache ? &cache : nullptr, prompt, options.max_tokens, on_token);
}

}  // namespace sluice
