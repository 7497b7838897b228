#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/fuzz/harness.h"

namespace sluice::fuzz {

/// An input that is wrong in one way, which its name states, or unusual but right.
struct Sample {
  std::string name;
  std::string bytes;
  std::string refusal;  ///< a part of the message; "": the input must be accepted
};
using Samples = std::vector<Sample>;

Samples safetensors_samples();
Samples json_samples();
Samples config_samples();
Samples bpe_samples();
Samples tokenizer_json_samples();
Samples characters_samples();
Samples tokens_samples();
Samples texts_samples();
Samples weights_samples();
Samples checkpoint_samples();
Samples schedule_samples();
Samples number_samples();
Samples options_file_samples();
Samples rank_records_samples();
Samples device_profile_samples();
Samples lists_samples();
Samples gguf_samples();

/// A harness and its samples, which also serve as its seeds.
struct Parser {
  const char* name;
  Reader reader;
  Samples (*samples)();
};
std::span<const Parser> parsers();

}  // namespace sluice::fuzz
