#include "tests/fuzz/samples.h"

#include <array>

namespace sluice::fuzz {

std::span<const Parser> parsers() {
  static constexpr std::array<Parser, 17> all{{
      {"safetensors", read_safetensors, safetensors_samples},
      {"json", read_json, json_samples},
      {"config", read_config, config_samples},
      {"bpe", read_bpe, bpe_samples},
      {"tokenizer_json", read_tokenizer_json, tokenizer_json_samples},
      {"characters", read_characters, characters_samples},
      {"tokens", read_tokens, tokens_samples},
      {"texts", read_texts, texts_samples},
      {"weights", read_weights, weights_samples},
      {"checkpoint", read_checkpoint, checkpoint_samples},
      {"schedule", read_schedule, schedule_samples},
      {"number", read_number, number_samples},
      {"options_file", read_options_file, options_file_samples},
      {"rank_records", read_rank_records, rank_records_samples},
      {"device_profile", read_device_profile, device_profile_samples},
      {"lists", read_lists, lists_samples},
      {"gguf", read_gguf, gguf_samples},
  }};
  return all;
}

}  // namespace sluice::fuzz
