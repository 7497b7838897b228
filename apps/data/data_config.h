#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/text_options.h"
#include "apps/data/tokens/sampler.h"

namespace sluice {

/// The text or tokens that a training reads, as a user asks for them.
struct DataConfig {
  std::vector<std::string> train;  ///< what find_data() reads; empty: the text that ships along
  std::vector<std::string> val;    ///< empty: a tenth of the training text
  TextOptions text{};
  std::optional<TokenizerKind> tokenizer;
  std::string tokenizer_dir;  ///< empty: that of the model or the data
  bool pack = false;          ///< several pairs in a sequence
  SequenceSampler::Order order = SequenceSampler::Order::shuffled;
  std::int64_t skip_batches = 0;  ///< left out when a run resumes
};

}  // namespace sluice
