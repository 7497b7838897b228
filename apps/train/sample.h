#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/training.h"

namespace sluice {

/// What a sample starts from: the prompt's tokens.
std::vector<std::int32_t> sample_prompt(const TrainOptions& options, const RunSetup& setup);

/// The prompt and what the model says after it, of the tokens that the tokenizer knows. All ranks
/// call it together.
std::string sample_text(const TrainOptions& options, const RunSetup& setup, Training& training,
                        std::int64_t step);

}  // namespace sluice
