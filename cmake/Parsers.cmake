# What reads files that others have written, and checkpoints: the fuzzers instrument it, and
# -DSLUICE_COVERAGE=ON counts which lines and branches of it the tests reach (scripts/coverage).

set(SLUICE_PARSERS
  engine/io/durable.cpp engine/io/file.cpp engine/io/gguf.cpp engine/io/input.cpp engine/io/json_document.cpp
  engine/io/output.cpp engine/io/safetensors.cpp engine/io/section_sums.cpp engine/io/utf8.cpp
  engine/io/stored_tensor.cpp engine/io/token_file.cpp
  parallel/flight_recorder/injection.cpp
  parallel/pipeline/rendezvous.cpp parallel/pipeline/schedule.cpp
  parallel/pipeline/schedule_text.cpp parallel/pipeline/validator.cpp
  parallel/flight_recorder/post_mortem.cpp parallel/flight_recorder/record_reader.cpp
  parallel/comm/backend/signature.cpp
  models/decoder/config.cpp models/decoder/gguf_model.cpp
  models/decoder/parallelize.cpp models/decoder/recompute.cpp models/decoder/weights.cpp
  models/text/bpe/added_tokens.cpp models/text/bpe/bpe_description.cpp
  models/text/bpe/bpe_files.cpp models/text/bpe/bpe_tables.cpp models/text/bpe/bpe_tokenizer.cpp
  models/text/bpe/byte_alphabet.cpp models/text/bpe/gguf_tokenizer.cpp
  models/text/bpe/normalizer.cpp models/text/bpe/pre_tokenizer.cpp models/text/bpe/tokenizer_json.cpp
  models/text/byte_tokenizer.cpp models/text/char_tokenizer.cpp models/text/tokenizer.cpp
  apps/checkpoint/checkpoint.cpp apps/checkpoint/checkpoint_folder.cpp apps/checkpoint/checkpoint_history.cpp
  apps/checkpoint/checkpoint_manifest.cpp apps/checkpoint/checkpoint_saver.cpp
  apps/cli/command_line.cpp apps/plan/cost/device_profile.cpp apps/data/json_lines.cpp
  apps/cli/parse/options_file.cpp
  apps/checkpoint/save_cadence.cpp apps/cli/sizes.cpp apps/data/text_source.cpp)

if(SLUICE_COVERAGE)
  foreach(file IN LISTS SLUICE_PARSERS)
    string(REGEX REPLACE "/.*" "" folder ${file})
    set_source_files_properties(${PROJECT_SOURCE_DIR}/${file} DIRECTORY ${folder}
                                PROPERTIES COMPILE_OPTIONS "--coverage;-Og;-fprofile-update=atomic")
  endforeach()
  target_link_options(sluice_options INTERFACE --coverage)
endif()
