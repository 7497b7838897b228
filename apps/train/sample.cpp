#include "apps/train/sample.h"

#include "apps/data/encode_text.h"

namespace sluice {

std::vector<std::int32_t> sample_prompt(const TrainOptions& o, const RunSetup& setup) {
  if (!setup.tokenizer) return {0};
  const Tokenizer& tokenizer = *setup.tokenizer;
  if (!o.prompt.empty()) return encode(tokenizer, o.prompt, o.text.special);
  if (tokenizer.end_of_text()) return {*tokenizer.end_of_text()};
  return {tokenizer.encode("\n").front()};
}

std::string sample_text(const TrainOptions& o, const RunSetup& setup, Training& training,
                        std::int64_t step) {
  const Sampling sampling{.temperature = 0.8,
                          .top_k = 200,
                          .seed = o.seed + static_cast<std::uint64_t>(step),
                          .vocabulary = setup.tokenizer->vocab_size()};
  const auto made = training.sample(sample_prompt(o, setup),
                                    {.max_tokens = o.sample_tokens, .sampling = sampling});
  return o.prompt + setup.tokenizer->decode(made);
}

}  // namespace sluice
