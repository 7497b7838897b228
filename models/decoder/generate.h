#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/device_context.h"
#include "models/decoder/decoder.h"

namespace sluice {

/// The KV cache: keys and values of all positions so far.
struct KeyValueCache {
  struct Layer {
    Tensor keys;    ///< [B, capacity, key/value heads * head width]
    Tensor values;  ///< likewise
  };
  std::vector<Layer> layers;
  std::int64_t length = 0;  ///< positions filled
};

/// Options for sampling the next token. temperature 0 is greedy (the smallest id wins a tie). top_k
/// 0 and top_p 1 keep all tokens. The random number depends only on (seed, position). Only the
/// first `vocabulary` tokens can be drawn, for a tokenizer with fewer tokens than the model; 0:
/// all. `prompt`: number of the text's prompt among several, for errors; 0: there is one.
struct Sampling {
  double temperature = 1;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
  std::int64_t vocabulary = 0;
  std::int64_t prompt = 0;
};

/// Draws the token at `position` of the sequence from `logits` (one per vocabulary entry). Throws
/// Error (numerical), naming text and position, if a logit is NaN or infinity.
std::int32_t draw(const Tensor& logits, const Sampling& sampling, std::uint64_t position);

struct Generation {
  std::int64_t max_tokens = 256;
  Sampling sampling{};
  bool use_cache = true;  ///< false: computes the whole sequence again for every token, as a check
  std::int64_t positions = 0;  ///< of the KV cache; 0: as many as prompt and new tokens need
};

/// Returns the next token after those in the cache and the `fresh` ones, which it adds to the
/// cache. `position`: index of the new token in the sequence.
using NextToken = std::function<std::int32_t(std::span<const std::int32_t> fresh,
                                             KeyValueCache* cache, std::size_t position)>;

/// Returns the function that computes tokens with a whole model on a device. Both must outlive it.
NextToken make_next_token(const Decoder& model, const DevicePtr& device, const Sampling& sampling);

/// Returns how many positions the KV cache has for a prompt of so many tokens: at most the context.
std::int64_t cache_positions(const DecoderConfig& config, std::size_t prompt,
                             const Generation& options);

/// Allocates a KV cache of `positions` for the blocks of `parts`.
KeyValueCache make_cache(const Decoder& model, const std::vector<DecoderPart>& parts,
                         const DevicePtr& device, DType dtype, std::int64_t positions);

/// How a token is drawn, and its index in its text.
using Draw = std::pair<Sampling, std::uint64_t>;

/// Returns the next token of each text after its last one, which it adds to the text's cache.
std::vector<std::int32_t> draw_next(const Decoder& model, const DevicePtr& device,
                                    std::span<const std::int32_t> ids, KeyValueCaches caches,
                                    std::span<const Draw> draws);

/// A text that is generated beside others.
struct GenerationRequest {
  std::vector<std::int32_t> prompt;
  Generation options;
  std::function<bool(std::int32_t)> on_token;  ///< returns false to end the text
  std::function<void()> on_end;
};

/// Continues every prompt as generate() does, at most `at_once` of them at a time: their next
/// tokens share a pass through the weights. Each has its own cache. On the CPU up to eight at once
/// get the bits that each gets alone.
void generate_many(const Decoder& model, const DevicePtr& device,
                   std::span<const GenerationRequest> requests, std::size_t at_once);

/// Throws Error (usage) unless the model's vocabulary has all tokens.
void require_tokens(const DecoderConfig& config, std::span<const std::int32_t> tokens);

/// Continues `prompt` (at least one id, each below the vocabulary) and calls `on_token` for every
/// new token, until it returns false or max_tokens are made. When the context is full, only its
/// later half is kept. Returns the new tokens.
std::vector<std::int32_t> generate(const Decoder& model, const DevicePtr& device,
                                   std::span<const std::int32_t> prompt, const Generation& options,
                                   const std::function<bool(std::int32_t)>& on_token = {});

/// The same with any function that finds the next token, and with the caller's cache.
std::vector<std::int32_t> generate(const DecoderConfig& config, const NextToken& next,
                                   KeyValueCache* cache, std::span<const std::int32_t> prompt,
                                   std::int64_t max_tokens,
                                   const std::function<bool(std::int32_t)>& on_token = {});

}  // namespace sluice
