#pragma once

#include <filesystem>
#include <string>
#include <string_view>

// All code that reads data written by others, each reader as a function of one input. libFuzzer
// calls the readers with inputs that it makes up (fuzzer.cpp); an ordinary test calls them with
// files that are wrong in known ways (corpus_test.cpp).

namespace sluice::fuzz {

using Bytes = std::string_view;

/// Reads the input and, if it is accepted, checks the invariants of the result. Error means that
/// the input was refused; any other failure is a defect.
using Reader = void (*)(Bytes);

void read_safetensors(Bytes input);
void read_json(Bytes input);
/// Reads GPT-2's config.json.
void read_config(Bytes input);
/// Reads a vocabulary, NUL, and merges. If the vocabulary is empty a small one is used, so that
/// merges can be tried without 256 symbols before them.
void read_bpe(Bytes input);
/// Reads tokenizer.json; after '+' a patch (RFC 7396) of a small one.
void read_tokenizer_json(Bytes input);
/// Reads bytes.json or chars.json.
void read_characters(Bytes input);
/// Reads a token .bin file.
void read_tokens(Bytes input);
/// Reads 'l' and a file of JSON Lines, or 'z' and gzip data of a text.
void read_texts(Bytes input);
/// Reads 'm' and model.safetensors of a small model, or 'i' and the index of its two shards.
void read_weights(Bytes input);
/// Reads one file of an otherwise whole checkpoint. 's': state.json as it is; 'r': the same with
/// its own checksum corrected; 'w' and 'o': weights and optimizer, listed with size and checksum;
/// 'd': weights that were damaged after they were listed; 'p': resume.json beside it.
void read_checkpoint(Bytes input);
/// Reads 'm' and a GGUF file of a model, or 't' and one of a tokenizer.
void read_gguf(Bytes input);
/// Reads a schedule as CSV, then takes it to the executor: lower, validate, simulate.
void read_schedule(Bytes input);
/// Reads a flag's value as a whole number, as a number and as a size.
void read_number(Bytes input);
/// Reads a --config file of a program that has an option of each kind.
void read_options_file(Bytes input);
/// Reads 'f' and a rank's record as it is, or 'r' and changes of the records of three ranks
/// (small_job.h). A missing record is refused with post_mortem's message for it.
void read_rank_records(Bytes input);
/// Reads 'j' and a file of plan --save-probe, or 'n' and the name of a card.
void read_device_profile(Bytes input);
/// Reads a flag's value that is a list. 'r': --placement, 'p': --pipeline-split, 'i': --inject,
/// 't': generate's --tokens; 's': --save-every, a number and its unit.
void read_lists(Bytes input);

/// Returns the message with which the reader refuses the input, "" if it accepts it. Checks that
/// the message can be displayed: one line of valid UTF-8 of limited length, without invisible
/// characters and characters that control a terminal.
std::string refusal(Reader reader, Bytes input);

/// Throws std::logic_error, which nothing catches, unless `holds`. For the harnesses.
void require(bool holds, const std::string& what);
/// Checks a message. It may hold a user's long path; text from a file must have been cut.
void require_showable(std::string_view message, std::size_t longest = 1000);
/// Returns the folder of this process, which is removed when the process ends.
const std::filesystem::path& scratch();
/// Writes a file in the scratch folder and returns its path.
std::filesystem::path put(const std::filesystem::path& name, Bytes bytes);

}  // namespace sluice::fuzz
