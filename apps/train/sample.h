#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/training.h"

namespace sluice {

/// Returns the tokens of the prompt from which a sample starts.
std::vector<std::int32_t> sample_prompt(const TrainOptions& options, const RunSetup& setup);

/// Returns the prompt and its continuation by the model, made of tokens that the tokenizer knows.
/// All ranks call it together.
std::string sample_text(const TrainOptions& options, const RunSetup& setup, Training& training,
                        std::int64_t step);

}  // namespace sluice
