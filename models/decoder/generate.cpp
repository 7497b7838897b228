#include "models/decoder/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/sample.h"

namespace sluice {
namespace {

/// Drops the older half of a text that is longer than the context. Returns true if it did.
bool cut(std::vector<std::int32_t>& window, std::size_t context) {
  if (window.size() <= context) return false;
  window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>((context + 1) / 2));
  return true;
}

/// Returns the last tokens of a prompt, as many as the context has.
std::vector<std::int32_t> window_of(std::span<const std::int32_t> prompt, std::size_t context) {
  const auto last = prompt.last(std::min(prompt.size(), context));
  return {last.begin(), last.end()};
}

/// A text of generate_many().
struct Text {
  const GenerationRequest* request;
  KeyValueCache cache;
  std::vector<std::int32_t> window;
  std::size_t cached = 0;
  std::uint64_t made = 0;
  bool ended = false;

  std::span<const std::int32_t> fresh() const { return std::span(window).subspan(cached); }
  void go_on(std::int32_t token) {
    ++made;
    cached = window.size();
    window.push_back(token);
    ended = (request->on_token && !request->on_token(token)) ||
            static_cast<std::int64_t>(made) >= request->options.max_tokens;
    if (ended && request->on_end) request->on_end();
  }
};

/// Returns the logits after the last of `fresh` tokens: [1, vocabulary].
Tensor last_logits(const Decoder& model, const DevicePtr& device,
                   std::span<const std::int32_t> fresh, KeyValueCache* cache) {
  const auto count = static_cast<std::int64_t>(fresh.size());
  const Tensor tokens = Tensor::from_tokens(device, {1, count}, fresh);
  const Tensor hidden =
      cache != nullptr ? model.continued(tokens, {&cache, 1}) : model.hidden(tokens);
  const std::int64_t width = hidden.dim(-1);
  return model.logits_of_token(hidden.slice((count - 1) * width, {1, width}));
}

[[noreturn]] void refuse_logits(const Tensor& logits, const Sampling& sampling,
                                std::uint64_t position) {
  const std::vector<double> values = logits.to_host();
  // Infinity below zero is the logit of an impossible token, unless all are.
  const auto bad = std::ranges::find_if(
      values, [](double value) { return !(value <= std::numeric_limits<float>::max()); });
  const auto id = bad != values.end() ? bad - values.begin() : 0;
  const double value = values[static_cast<std::size_t>(id)];
  fail(fmt::format("{}new token {}: the model's logits are not finite ({} for id {}), so no token "
                   "can be drawn; compute in a wider type, or look for weights that are too large",
                   sampling.prompt > 0 ? fmt::format("prompt {}, ", sampling.prompt) : "",
                   position + 1, std::isnan(value) ? std::abs(value) : value, id),
       ErrorKind::numerical);
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
  const auto drawn = static_cast<std::int32_t>(token.item());
  if (drawn < 0) refuse_logits(logits.slice(0, {1, known}), sampling, position);
  return drawn;
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
  const std::int64_t context = config.longest_sequence();
  return std::min(context,
                  static_cast<std::int64_t>(prompt) + std::min(context, options.max_tokens));
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
  const auto context = static_cast<std::size_t>(config.longest_sequence());
  std::vector<std::int32_t> window = window_of(prompt, context);
  std::size_t cached = 0;
  std::vector<std::int32_t> made;
  while (static_cast<std::int64_t>(made.size()) < max_tokens) {
    if (cut(window, context)) {
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

std::vector<std::int32_t> draw_next(const Decoder& model, const DevicePtr& device,
                                    std::span<const std::int32_t> ids, KeyValueCaches caches,
                                    std::span<const Draw> draws) {
  std::vector<std::int32_t> tokens;
  if (ids.empty()) return tokens;
  const auto rows = static_cast<std::int64_t>(ids.size());
  const Tensor hidden = model.continued(Tensor::from_tokens(device, {rows, 1}, ids), caches);
  const Tensor logits = model.logits(hidden.slice(0, {rows, hidden.dim(2)}));
  const std::int64_t vocabulary = logits.dim(1);
  for (std::size_t row = 0; row < ids.size(); ++row)
    tokens.push_back(
        draw(logits.slice(static_cast<std::int64_t>(row) * vocabulary, {1, vocabulary}),
             draws[row].first, draws[row].second));
  return tokens;
}

void generate_many(const Decoder& model, const DevicePtr& device,
                   std::span<const GenerationRequest> requests, std::size_t at_once) {
  const NoGrad no_grad;
  const DecoderConfig& config = model.config();
  const auto begin = [&](const GenerationRequest& request) {
    check(!request.prompt.empty(), "generation needs a prompt of at least one token");
    require_tokens(config, request.prompt);
    const auto context = static_cast<std::size_t>(config.longest_sequence());
    return Text{
        .request = &request,
        .cache = make_cache(model, {{0, config.n_layer}}, device, model.dtype(),
                            cache_positions(config, request.prompt.size(), request.options)),
        .window = window_of(request.prompt, context)};
  };
  std::vector<Text> texts;
  for (std::size_t next = 0; next < requests.size() || !texts.empty();) {
    for (; texts.size() < at_once && next < requests.size(); ++next)
      if (requests[next].options.max_tokens > 0)
        texts.push_back(begin(requests[next]));
      else if (requests[next].on_end)
        requests[next].on_end();
    std::vector<Text*> together;
    for (Text& text : texts) {
      if (cut(text.window, static_cast<std::size_t>(config.longest_sequence())))
        text.cached = static_cast<std::size_t>(text.cache.length = 0);
      if (text.fresh().size() == 1)
        together.push_back(&text);
      else
        text.go_on(draw(last_logits(model, device, text.fresh(), &text.cache),
                        text.request->options.sampling, text.made));
    }
    std::vector<std::int32_t> ids;
    std::vector<KeyValueCache*> caches;
    std::vector<Draw> draws;
    for (Text* const text : together) {
      ids.push_back(text->window.back());
      caches.push_back(&text->cache);
      draws.emplace_back(text->request->options.sampling, text->made);
    }
    const std::vector<std::int32_t> tokens = draw_next(model, device, ids, caches, draws);
    for (std::size_t row = 0; row < tokens.size(); ++row)
      together[row]->go_on(tokens[row]);
    std::erase_if(texts, [](const Text& text) { return text.ended; });
  }
}

}  // namespace sluice
