#pragma once

#include <filesystem>
#include <string>
#include <string_view>

// Everything that reads what others have written, each as a function of an input alone. libFuzzer
// calls them with inputs of its own making (fuzzer.cpp), an ordinary test with files that are
// wrong in known ways (corpus_test.cpp).

namespace sluice::fuzz {

using Bytes = std::string_view;

/// Reads the input and, where it is accepted, checks what must hold of the result. Error is a
/// refusal; whatever else happens is a defect.
using Reader = void (*)(Bytes);

void read_safetensors(Bytes input);
void read_json(Bytes input);
/// GPT-2's config.json.
void read_config(Bytes input);
/// The vocabulary, NUL, the merges. Without a vocabulary a small one is taken, so that merges can
/// be tried without 256 symbols before them.
void read_bpe(Bytes input);
/// tokenizer.json; after '+' a patch (RFC 7396) of a small one.
void read_tokenizer_json(Bytes input);
/// bytes.json or chars.json.
void read_characters(Bytes input);
/// A token .bin file.
void read_tokens(Bytes input);
/// 'l' and a file of JSON Lines, or 'z' and gzip data of a text.
void read_texts(Bytes input);
/// 'm' and model.safetensors of a small model, or 'i' and the index of its two shards.
void read_weights(Bytes input);
/// A file of a checkpoint that is whole otherwise. 's': state.json as it is, 'r': with its own
/// checksum put right, 'w' and 'o': weights and optimizer, listed with their size and checksum,
/// 'd': weights that were damaged after they were listed. 'p': resume.json beside it.
void read_checkpoint(Bytes input);
/// A schedule as CSV, then its way to the executor: lower, validate, simulate.
void read_schedule(Bytes input);
/// A flag's value: a whole number, a number and a size.
void read_number(Bytes input);
/// A file for --config of a program that has an option of each kind.
void read_options_file(Bytes input);
/// 'f' and a rank's record as it is, or 'r' and changes of the records of three ranks
/// (small_job.h). Refused where a rank has no record: by what post_mortem says to that.
void read_rank_records(Bytes input);
/// 'j' and a file of plan --save-probe, or 'n' and the name of a card.
void read_device_profile(Bytes input);
/// A flag's value that lists things. 'r': --recompute, 'p': --pipeline-split, 'i': --inject,
/// 't': generate's --tokens; 's': --save-every, a number and its unit.
void read_lists(Bytes input);

/// The message with which the reader refuses the input, "" where it accepts it. Checks that the
/// message can be shown: one line of valid UTF-8, without characters that a terminal would obey or
/// not show, not endless.
std::string refusal(Reader reader, Bytes input);

/// For the harnesses: throws std::logic_error, which nothing catches, unless `holds`.
void require(bool holds, const std::string& what);
/// Paths are the user's own and may be long; what comes from a file is cut.
void require_showable(std::string_view message, std::size_t longest = 1000);
/// The folder of this process, removed at its end.
const std::filesystem::path& scratch();
/// Writes a file there and returns its path.
std::filesystem::path put(const std::filesystem::path& name, Bytes bytes);

}  // namespace sluice::fuzz
