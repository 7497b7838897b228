#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "apps/cli/command_line.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/data/data_files.h"
#include "apps/data/document_split.h"
#include "apps/data/encode_text.h"
#include "apps/data/pair_encoder.h"
#include "apps/data/same_files.h"
#include "apps/data/tokens/prepared_folder.h"
#include "apps/data/tokens/shared_part.h"
#include "apps/flags/no_effect.h"
#include "apps/output/output_file.h"
#include "apps/output/shared_folder.h"
#include "engine/io/section_sums.h"
#include "engine/io/utf8.h"
#include "kernels/base/error.h"
#include "models/text/byte_tokenizer.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/world.h"

// Turns text into files of tokens. Ranks of mpirun divide the encoding: each reads all text,
// encodes its turns and writes them, with the others, to one file (MPI-IO).

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
  GivenFlags given{};
};

void declare(CommandLine& line, Options& o) {
  line.add("--input", o.input,
           "Text files, .jsonl, .gz of them, folders, patterns, - for standard input");
  line.require("--input");
  line.add_choice("--tokenizer", o.tokenizer,
                  "How text becomes tokens; auto: as --tokenizer-dir says, else bytes", tokenizers);
  line.add("--tokenizer-dir", o.tokenizer_dir,
           "Folder with tokenizer.json, vocab.json + merges.txt or encoder.json + vocab.bpe");
  line.add_output("--output", o.output, "Folder for train.bin, val.bin and the tokenizer's files",
                  [](const std::string& folder) { require_prepared_or_new("--output", folder); });
  add_unmarked_output(line, "--encode-only", o.encode_only,
                      "Write one file of tokens instead, which must be new, empty or a device");
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
  for (const fs::path& file : model_files_of("--tokenizer-dir", o.tokenizer_dir).files)
    inputs.push_back(file);
  return inputs;
}

/// Refuses to overwrite inputs.
void require_not_inputs(const Options& o, const DataFiles& files) {
  const auto inputs = inputs_of(o, files);
  if (!o.encode_only.empty()) return require_not_input("--encode-only", o.encode_only, inputs);
  if (!fs::is_directory(o.output)) return;
  for (const auto& entry : fs::directory_iterator(o.output))
    if (is_prepared_part(entry.path()) || is_tokenizer_file(entry.path().filename().string()))
      require_not_input("--output", entry.path(), inputs);
}

/// Returns a folder with room for a copy of input that can be read only once: beside the result.
fs::path folder_for_copies(const Options& o) {
  if (fs::exists(o.encode_only) && !fs::is_regular_file(o.encode_only)) return {};
  return nearest_folder(fs::absolute(o.output.empty() ? o.encode_only : o.output));
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
  say(fmt::format("{}\n", printable(report.text())));
  if (!report.skipped.none()) say(fmt::format("left out {}\n", printable(report.skipped.text())));
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

/// A job has what every way of writing needs: the text, what its first reading found, the ranks.
struct Job {
  const Options& o;
  const TextSource& source;
  const TextScan& found;
  const Tokenizer& tokenizer;
  Communicator& ranks;
  std::function<void(std::uint64_t)> advance;

  std::size_t id_bytes() const { return token_bytes(tokenizer.vocab_size()); }

  std::unique_ptr<PreparedPart> part(const fs::path& folder, const std::string& name,
                                     std::size_t bytes_of_id, const char* extension) const {
    if (ranks.size() > 1)
      return std::make_unique<SharedPart>(folder / (name + extension), bytes_of_id, ranks);
    return std::make_unique<ShardedPart>(
        folder, name, static_cast<std::size_t>(o.shard_tokens.value_or(0)), bytes_of_id, extension);
  }

  Turns turns(std::function<void()> end_of_round) const {
    return {ranks.rank(), ranks.size(), std::move(end_of_round)};
  }

  /// Returns the sum of a count of all ranks.
  std::int64_t total(std::int64_t mine) const {
    const auto all = ranks.gather_values(mine, "counts");
    return std::accumulate(all.begin(), all.end(), std::int64_t{0});
  }
};

/// Tokens of whole documents.
struct TextPart {
  std::unique_ptr<PreparedPart> tokens;
  DocumentEncoder encoder;

  TextPart(const Job& job, const fs::path& folder, const std::string& name, const char* extension)
      : tokens(job.part(folder, name, job.id_bytes(), extension)),
        encoder(
            job.tokenizer, job.o.text.special, [this](auto ids) { tokens->append(ids); },
            job.turns([this] { tokens->end_round(); })) {}
  TextPart(const TextPart&) = delete;
  TextPart& operator=(const TextPart&) = delete;
};

/// Tokens of pairs, with their mask.
struct PairPart {
  std::unique_ptr<PreparedPart> tokens, mask;
  PairEncoder encoder;

  PairPart(const Job& job, const char* name)
      : tokens(job.part(job.o.output, name, job.id_bytes(), ".bin")),
        mask(job.part(job.o.output, name, 2, ".mask")),
        encoder(
            job.tokenizer, job.o.text.special,
            [this](auto ids, auto marks) {
              tokens->append(ids);
              mask->append(marks);
            },
            job.turns([this] {
              tokens->end_round();
              mask->end_round();
            })) {}
  PairPart(const PairPart&) = delete;
  PairPart& operator=(const PairPart&) = delete;
};

/// Syncs the parts, and replaces the contents of the folder by them.
void publish_together(const Job& job, std::initializer_list<PreparedPart*> parts) {
  for (PreparedPart* const part : parts)
    part->complete();
  if (job.ranks.rank() == 0) publish(job.o.output, job.tokenizer, parts);
}

void write_pairs(const Job& job) {
  const Options& o = job.o;
  PairPart train(job, "train"), val(job, "val");
  const auto training = training_pairs(job.found.documents, 1 - o.val_fraction, o.text.split_seed);
  const auto to = [](PairPart& part) {
    return [&part](const Document& pair) { part.encoder.add(pair); };
  };
  divide_text(job.source, job.found, training, to(train), to(val), job.advance);
  publish_together(job, {val.mask.get(), val.tokens.get(), train.mask.get(), train.tokens.get()});
  const auto total = [&](const PairPart& part) {
    PairCounts all = part.encoder.counts();
    for (std::int64_t* const count : {&all.pairs, &all.tokens, &all.counted, &all.left_out})
      *count = job.total(*count);
    return all;
  };
  const PairCounts learned = total(train), validated = total(val);
  print_report(job.found.report);
  say(fmt::format("{} training and {} validation pairs ({}) in {}\n", learned.pairs,
                  validated.pairs, job.tokenizer.kind(), o.output));
  say(fmt::format("{} and {} tokens, of which {} and {} count\n", learned.tokens, validated.tokens,
                  learned.counted, validated.counted));
  if (const std::int64_t none = learned.left_out + validated.left_out; none > 0)
    say(fmt::format("left out {} of a single token, which nothing predicts\n", none));
}

void write_one_file(const Job& job) {
  const Options& o = job.o;
  const fs::path file = o.encode_only;
  TextPart all(job, file.parent_path(), file.filename().string(), "");
  encode_text(job.source, job.found, training_bytes(job.found.documents, 1, o.text.split_seed),
              all.encoder, all.encoder, job.advance);
  all.tokens->complete();
  all.tokens->publish();
  const std::int64_t tokens = job.total(all.encoder.tokens());
  print_report(job.found.report);
  say(fmt::format("{} tokens in {}\n", tokens, o.encode_only));
}

void write_folder(const Job& job) {
  const Options& o = job.o;
  TextPart train(job, o.output, "train", ".bin"), val(job, o.output, "val", ".bin");
  encode_text(job.source, job.found,
              training_bytes(job.found.documents, 1 - o.val_fraction, o.text.split_seed),
              train.encoder, val.encoder, job.advance);
  publish_together(job, {val.tokens.get(), train.tokens.get()});
  const std::int64_t learned = job.total(train.encoder.tokens());
  const std::int64_t validated = job.total(val.encoder.tokens());
  print_report(job.found.report);
  say(fmt::format("{} training and {} validation tokens ({}) in {}\n", learned, validated,
                  job.tokenizer.kind(), o.output));
  if (o.shard_tokens)
    say(fmt::format("{} training and {} validation files\n", train.tokens->files(),
                    val.tokens->files()));
}

/// Refuses what several ranks cannot do.
void require_one_rank(const Options& o, const DataFiles& files, int ranks) {
  for (const TextFile& file : files.texts)
    if (file.stream && ranks > 1)
      fail(
          fmt::format("--input {} can be read once, and each of {} ranks reads the text; start one "
                      "process, or write it to a file first",
                      file.path.string(), ranks),
          ErrorKind::usage);
  if (o.shard_tokens && ranks > 1)
    fail(fmt::format("--shard-tokens: {} ranks write one file together; leave it out, or start one "
                     "process",
                     ranks),
         ErrorKind::usage);
  if (!o.encode_only.empty() && ranks > 1 && fs::exists(o.encode_only) &&
      !fs::is_regular_file(o.encode_only))
    fail(fmt::format("--encode-only {}: {} ranks write one file together, and this is no file",
                     o.encode_only, ranks),
         ErrorKind::usage);
}

/// Throws Error (usage) on a rank that reads another text than rank 0, or would make other tokens.
void require_same_work(const Options& o, const TextScan& found, const Tokenizer& tokenizer,
                       Communicator& ranks) {
  std::uint32_t text = 0;
  for (const DocumentFacts& document : found.documents)
    text = crc32_of(std::as_bytes(std::span(&document.sum, 1)), text);
  require_equal(ranks, {{.what = "text",
                         .mine = fmt::format("{} documents of {} bytes, checksum {:08x}",
                                             found.documents.size(), found.report.bytes, text)},
                        {.what = "tokenizer", .mine = facts_of(tokenizer).text()},
                        {.what = "way to prepare",
                         .mine = fmt::format("--output '{}' --encode-only '{}' --val-fraction {} "
                                             "--split-seed {} --pairs={} --special={}",
                                             o.output, o.encode_only, o.val_fraction,
                                             o.text.split_seed, o.pairs, o.text.special)}});
}

/// Refuses flags that would change nothing beside this text.
void require_effects(const Options& o, const DataFiles& files) {
  const bool json = any_json_lines(files, o.text.format);
  const bool few = !json && files.texts.size() < few_documents;
  refuse_without_effect(o.given, text_rules(true, json, files.name, few));
  refuse_without_effect(
      o.given, {{!o.encode_only.empty(), "--val-fraction --split-seed",
                 "divides the text for training and validation, and --encode-only writes one file"},
                {o.val_fraction == 0, "--split-seed",
                 "draws documents for validation, and --val-fraction 0 takes none"}});
}

void run(Options o, const World& world) {
  require_pairs(o);
  if (o.pairs) {
    o.text.format = TextFormat::jsonl;
    o.text.pairs = o.fields;
  }
  if (o.output.empty() == o.encode_only.empty())
    fail("give --output FOLDER or --encode-only FILE", ErrorKind::usage);
  if (o.shard_tokens && o.output.empty())
    fail("--shard-tokens is for --output, not for --encode-only", ErrorKind::usage);
  // A rank may read or encode for hours before the others hear of it. When one fails, mpirun ends
  // them all. The deadline is a month.
  const auto ranks = world.communicator({}, {.timeout = 30.0 * 24 * 3600});
  if (world.size() > 1)
    require_same_files(*ranks, {data_files_of("--input", o.input),
                                model_files_of("--tokenizer-dir", o.tokenizer_dir)});
  const DataFiles files = find_texts(o);
  require_one_rank(o, files, world.size());
  require_not_inputs(o, files);
  require_effects(o, files);
  require_shared_folder(*ranks, o.output.empty() ? "--encode-only" : "--output",
                        o.output.empty() ? o.encode_only : o.output);
  const TextSource source(files, o.text, folder_for_copies(o));
  const auto tokenizer = make_tokenizer(o, source);
  require_special(*tokenizer, o.text.special);
  // Reads everything once, so that errors are found before anything is written.
  const TextScan found = scan(source, *tokenizer, o.text.special, "--input");
  if (world.size() > 1) require_same_work(o, found, *tokenizer, *ranks);
  ProgressBar bar("encoding", static_cast<double>(found.report.bytes));
  const Job job{o,      source,
                found,  *tokenizer,
                *ranks, [&](std::uint64_t bytes) {
                  bar.advance(static_cast<double>(bytes)); }};
  if (!o.encode_only.empty()) return write_one_file(job);
  if (world.rank() == 0) make_folder(o, *tokenizer);
  if (o.pairs) return write_pairs(job);
  write_folder(job);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_ranks("prepare_data", [&](const sluice::World& world) {
    sluice::Options options;
    sluice::CommandLine line("prepare_data",
                             "Turns text into files of tokens. mpirun divides the work.");
    sluice::declare(line, options);
    const auto defaults = line.values();
    if (!line.parse(argc, argv)) return;
    options.given = sluice::given_flags(line, defaults);
    sluice::run(options, world);
  });
}
