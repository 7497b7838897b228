#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>

#include "apps/cli/command_line.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/data/data_files.h"
#include "apps/data/encode_text.h"
#include "apps/data/pair_encoder.h"
#include "apps/data/tokens/prepared_folder.h"
#include "apps/output/output_file.h"
#include "engine/io/utf8.h"
#include "kernels/base/error.h"
#include "models/text/byte_tokenizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> input;
  std::string output, encode_only, tokenizer_dir;
  std::optional<TokenizerKind> tokenizer;
  TextOptions text;
  double val_fraction = 0.1;
  bool pairs = false;
  PairFields fields;
  std::optional<std::int64_t> shard_tokens;
};

void declare(CommandLine& line, Options& o) {
  line.add("--input", o.input,
           "Text files, .jsonl, .gz of them, folders, patterns, - for standard input");
  line.require("--input");
  line.add_choice("--tokenizer", o.tokenizer,
                  "How text becomes tokens; auto: as --tokenizer-dir says, else bytes", tokenizers);
  line.add("--tokenizer-dir", o.tokenizer_dir,
           "Folder with tokenizer.json, vocab.json + merges.txt or encoder.json + vocab.bpe");
  line.add("--output", o.output, "Folder for train.bin, val.bin and the tokenizer's files");
  line.add("--encode-only", o.encode_only, "Write one file of tokens instead");
  line.add("--val-fraction", o.val_fraction,
           "Part of the text for val.bin: whole documents, or the end of few", 0, 0.9);
  line.add("--shard-tokens", o.shard_tokens,
           "Write train_000001.bin and so on, with so many tokens each", 1);
  line.add("--pairs", o.pairs,
           "Lines of JSON are pairs of prompt and completion: write train.mask and val.mask, by "
           "which the completion alone is learned");
  line.add("--prompt-field", o.fields.prompt, "Field of a pair that holds the prompt");
  line.add("--completion-field", o.fields.completion, "Field of a pair that holds the completion");
  declare_text_options(line, o.text);
}

std::unique_ptr<Tokenizer> make_tokenizer(const Options& o, const TextSource& source) {
  const std::string_view kind = o.tokenizer ? name_in(tokenizers, *o.tokenizer) : "";
  if (!o.tokenizer_dir.empty()) {
    auto tokenizer = load_tokenizer(o.tokenizer_dir);
    if (o.tokenizer && tokenizer->kind() != kind)
      fail(fmt::format("{} holds a tokenizer of kind {}, --tokenizer asks for {}; leave "
                       "--tokenizer out to take that of the folder",
                       o.tokenizer_dir, tokenizer->kind(), kind),
           ErrorKind::usage);
    return tokenizer;
  }
  if (o.tokenizer == TokenizerKind::gpt2 || o.tokenizer == TokenizerKind::bpe)
    fail(fmt::format("--tokenizer {} needs --tokenizer-dir with {}", kind,
                     kind == "bpe" ? "tokenizer.json"
                                   : "vocab.json and merges.txt (or encoder.json and vocab.bpe)"),
         ErrorKind::usage);
  if (o.tokenizer == TokenizerKind::chars)
    return std::make_unique<CharTokenizer>(characters_of(source));
  return std::make_unique<ByteTokenizer>();
}

DataFiles find_texts(const Options& o) {
  DataFiles files = find_data("--input", o.input);
  if (files.texts.empty())
    fail(fmt::format("--input: {} is a file of tokens, not text",
                     (files.tokens.empty() ? files.val_tokens : files.tokens).front().string()),
         ErrorKind::usage);
  return files;
}

/// Returns the text files and the tokenizer's files.
std::vector<fs::path> inputs_of(const Options& o, const DataFiles& files) {
  std::vector<fs::path> inputs;
  for (const TextFile& file : files.texts)
    inputs.push_back(file.path);
  std::error_code error;
  if (!o.tokenizer_dir.empty())
    for (fs::directory_iterator at(o.tokenizer_dir, error), end; !error && at != end;
         at.increment(error))
      if (is_tokenizer_file(at->path().filename().string())) inputs.push_back(at->path());
  return inputs;
}

/// Refuses to overwrite inputs, and token files that another program has made.
void require_free(const Options& o, const DataFiles& files) {
  const auto inputs = inputs_of(o, files);
  if (!o.encode_only.empty()) return require_not_input("--encode-only", o.encode_only, inputs);
  if (!fs::is_directory(o.output)) return;
  const bool ours = has_tokenizer(o.output);
  for (const auto& entry : fs::directory_iterator(o.output)) {
    const bool tokens = is_prepared_part(entry.path());
    if (!tokens && !is_tokenizer_file(entry.path().filename().string())) continue;
    require_not_input("--output", entry.path(), inputs);
    if (tokens && !ours)
      fail(fmt::format("--output: {} was not written by prepare_data, for there is no tokenizer "
                       "beside it; give another folder",
                       entry.path().string()),
           ErrorKind::usage);
  }
}

/// Returns a folder with room for a copy of input that can be read only once: beside the result.
fs::path folder_for_copies(const Options& o) {
  fs::path folder = fs::absolute(o.output.empty() ? o.encode_only : o.output);
  while (!fs::is_directory(folder) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder;
}

void make_folder(const Options& o, const Tokenizer& tokenizer) {
  std::error_code error;
  fs::create_directories(o.output, error);
  if (error)
    fail(fmt::format("--output {} cannot be made: {}", o.output, error.message()),
         ErrorKind::usage);
  if (has_tokenizer(o.output) && load_tokenizer(o.output)->kind() != tokenizer.kind())
    fail(fmt::format("{} holds data of the {} tokenizer; give another --output", o.output,
                     load_tokenizer(o.output)->kind()),
         ErrorKind::usage);
}

/// Prints what was read, in one line or two.
void print_report(const TextReport& report) {
  fmt::print("{}\n", printable(report.text()));
  if (!report.skipped.none()) fmt::print("left out {}\n", printable(report.skipped.text()));
}

/// Refuses options that do not go with --pairs, or with none.
void require_pairs(const Options& o) {
  const PairFields usual;
  if (!o.pairs) {
    if (o.fields.prompt != usual.prompt || o.fields.completion != usual.completion)
      fail("--prompt-field and --completion-field are for --pairs", ErrorKind::usage);
    return;
  }
  const auto refuse = [](const char* what) {
    fail(fmt::format("--pairs: {}", what), ErrorKind::usage);
  };
  if (!o.encode_only.empty()) refuse("there is a mask beside the tokens; give --output");
  if (o.shard_tokens) refuse("pairs are in one file; leave out --shard-tokens");
  if (o.text.format == TextFormat::text)
    refuse("pairs are lines of JSON; leave out --text-format text");
  if (o.text.field != TextOptions().field)
    refuse("--text-field is for texts; give --prompt-field and --completion-field");
  if (o.fields.prompt == o.fields.completion)
    refuse("--prompt-field and --completion-field name the same field");
}

/// A part of the data with its mask.
struct PairPart {
  PreparedPart tokens, mask;
  PairEncoder encoder;

  PairPart(const Options& o, const char* name, const Tokenizer& tokenizer)
      : tokens(o.output, name, 0, token_bytes(tokenizer.vocab_size())),
        mask(o.output, name, 0, 2, ".mask"),
        encoder(tokenizer, o.text.special, [this](auto ids, auto marks) {
          tokens.append(ids);
          mask.append(marks);
        }) {}
  PairPart(const PairPart&) = delete;
  PairPart& operator=(const PairPart&) = delete;
};

using Advance = std::function<void(std::uint64_t)>;

void write_pairs(const Options& o, const TextSource& source, const TextScan& found,
                 const Tokenizer& tokenizer, const Advance& advance) {
  PairPart train(o, "train", tokenizer), val(o, "val", tokenizer);
  const auto training = training_pairs(found.documents, 1 - o.val_fraction, o.text.split_seed);
  const auto to = [](PairPart& part) {
    return [&part](const Document& pair) { part.encoder.add(pair); };
  };
  divide_text(source, found, training, to(train), to(val), advance);
  publish(o.output, tokenizer, {&val.mask, &val.tokens, &train.mask, &train.tokens});
  print_report(found.report);
  fmt::print("{} training and {} validation pairs ({}) in {}\n", train.encoder.pairs(),
             val.encoder.pairs(), tokenizer.kind(), printable(o.output));
  fmt::print("{} and {} tokens, of which {} and {} count\n", train.encoder.tokens(),
             val.encoder.tokens(), train.encoder.counted(), val.encoder.counted());
  if (const std::int64_t none = train.encoder.left_out() + val.encoder.left_out(); none > 0)
    fmt::print("left out {} of a single token, which nothing predicts\n", none);
}

int run(Options o) {
  require_pairs(o);
  if (o.pairs) {
    o.text.format = TextFormat::jsonl;
    o.text.pairs = o.fields;
  }
  if (o.output.empty() == o.encode_only.empty())
    fail("give --output FOLDER or --encode-only FILE", ErrorKind::usage);
  if (o.shard_tokens && o.output.empty())
    fail("--shard-tokens is for --output, not for --encode-only", ErrorKind::usage);
  const DataFiles files = find_texts(o);
  require_free(o, files);
  const TextSource source(files, o.text, folder_for_copies(o));
  // Reads everything once, so that errors are found before anything is written.
  const TextScan found = scan(source);
  const auto tokenizer = make_tokenizer(o, source);
  require_special(*tokenizer, o.text.special);
  const std::size_t id_bytes = token_bytes(tokenizer->vocab_size());
  ProgressBar bar("encoding", static_cast<double>(found.report.bytes));
  const auto advance = [&](std::uint64_t bytes) { bar.advance(static_cast<double>(bytes)); };
  if (!o.encode_only.empty()) {
    TokenFileWriter writer(o.encode_only, id_bytes);
    DocumentEncoder all(*tokenizer, o.text.special, [&](auto ids) { writer.append(ids); });
    encode_text(source, found, training_bytes(found.documents, 1, o.text.split_seed), all, all,
                advance);
    writer.finish();
    print_report(found.report);
    fmt::print("{} tokens in {}\n", all.tokens(), printable(o.encode_only));
    return 0;
  }
  make_folder(o, *tokenizer);
  if (o.pairs) {
    write_pairs(o, source, found, *tokenizer, advance);
    return 0;
  }
  const auto shard_tokens = static_cast<std::size_t>(o.shard_tokens.value_or(0));
  PreparedPart train_files(o.output, "train", shard_tokens, id_bytes);
  PreparedPart val_files(o.output, "val", shard_tokens, id_bytes);
  DocumentEncoder train(*tokenizer, o.text.special, [&](auto ids) { train_files.append(ids); });
  DocumentEncoder val(*tokenizer, o.text.special, [&](auto ids) { val_files.append(ids); });
  encode_text(source, found, training_bytes(found.documents, 1 - o.val_fraction, o.text.split_seed),
              train, val, advance);
  publish(o.output, *tokenizer, {&val_files, &train_files});
  print_report(found.report);
  fmt::print("{} training and {} validation tokens ({}) in {}\n", train.tokens(), val.tokens(),
             tokenizer->kind(), printable(o.output));
  if (shard_tokens > 0)
    fmt::print("{} training and {} validation files\n", train_files.files(), val_files.files());
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_program("prepare_data", [&] {
    sluice::Options options;
    sluice::CommandLine line("prepare_data", "Turns text into files of tokens.");
    sluice::declare(line, options);
    return line.parse(argc, argv) ? sluice::run(options) : 0;
  });
}
