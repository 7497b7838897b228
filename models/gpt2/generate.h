#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/device_context.h"
#include "models/gpt2/gpt2.h"

namespace sluice {

/// How the next token is drawn. temperature 0 is greedy (the smallest id wins a tie); top_k 0 and
/// top_p 1 leave all tokens in. Drawing is a function of (seed, position) alone. Only the first
/// `vocabulary` tokens are drawn, those that a tokenizer smaller than the model's knows; 0: all.
struct Sampling {
  double temperature = 1;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
  std::int64_t vocabulary = 0;
};

/// The next token for `logits` (one per vocabulary entry) at `position` of the stream.
std::int32_t draw(const Tensor& logits, const Sampling& sampling, std::uint64_t position);

struct Generation {
  std::int64_t max_tokens = 256;
  Sampling sampling{};
  bool use_cache = true;  ///< false: the whole sequence again for every token, as a check
};

/// The token after all those that a cache has seen and `fresh` ones, which it sees now; number
/// `position` of those that are made.
using NextToken = std::function<std::int32_t(std::span<const std::int32_t> fresh,
                                             KeyValueCache* cache, std::size_t position)>;

/// Memory for the keys and values of the layers [first, last) of the parts.
KeyValueCache make_cache(const GPT2& model, const std::vector<GPT2Part>& parts,
                         const DevicePtr& device, DType dtype);

/// Continues `prompt` (at least one id, each below the vocabulary) and calls `on_token` for every
/// new one, until it returns false or max_tokens are made. When the context is full, the later half
/// of it stays. Returns the new tokens.
std::vector<std::int32_t> generate(const GPT2& model, const DevicePtr& device,
                                   std::span<const std::int32_t> prompt, const Generation& options,
                                   const std::function<bool(std::int32_t)>& on_token = {});

/// The same by whatever finds the next token, from a cache made beforehand.
std::vector<std::int32_t> generate(const GPT2Config& config, const NextToken& next,
                                   KeyValueCache* cache, std::span<const std::int32_t> prompt,
                                   std::int64_t max_tokens,
                                   const std::function<bool(std::int32_t)>& on_token = {});

}  // namespace sluice
