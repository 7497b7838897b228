#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "apps/train/command_line.h"
#include "apps/train/dataset.h"
#include "apps/train/progress.h"
#include "engine/io/token_file.h"
#include "kernels/base/error.h"
#include "models/text/byte_tokenizer.h"
#include "models/text/char_tokenizer.h"

namespace sluice {
namespace {

struct Options {
  std::string input, output, encode_only, tokenizer = "bytes", tokenizer_dir;
  double val_fraction = 0.1;
};

void declare(CommandLine& line, Options& o) {
  line.add("--input", o.input, "Text file");
  line.require("--input");
  line.add_choice("--tokenizer", o.tokenizer, "How text becomes tokens",
                  {"bytes", "chars", "gpt2"});
  line.add("--tokenizer-dir", o.tokenizer_dir,
           "Folder with vocab.json + merges.txt or encoder.json + vocab.bpe, for gpt2");
  line.add("--output", o.output, "Folder for train.bin, val.bin and the tokenizer's files");
  line.add("--encode-only", o.encode_only, "Write one headerless uint16 file instead");
  line.add("--val-fraction", o.val_fraction, "Part of the text for val.bin, from its end", 0, 0.9);
}

std::unique_ptr<Tokenizer> make_tokenizer(const Options& o, const std::string& text) {
  if (o.tokenizer == "bytes") return std::make_unique<ByteTokenizer>();
  if (o.tokenizer == "chars")
    return std::make_unique<CharTokenizer>(CharTokenizer::from_text(text));
  if (o.tokenizer_dir.empty())
    fail(
        "--tokenizer gpt2 needs --tokenizer-dir with vocab.json and merges.txt (or encoder.json "
        "and vocab.bpe)",
        ErrorKind::usage);
  return load_tokenizer(o.tokenizer_dir);
}

/// Where a piece may end without changing the tokens: after a lone newline between two visible
/// characters. GPT-2 makes it a piece of its own; a longer run of white space is split by what
/// follows it.
std::size_t piece_end(std::string_view text, std::size_t wanted) {
  const auto visible = [](char c) { return c > ' ' && c < 127; };
  for (std::size_t at = std::max<std::size_t>(wanted, 2); at < text.size(); ++at)
    if (visible(text[at - 2]) && text[at - 1] == '\n' && visible(text[at])) return at;
  return text.size();
}

std::size_t encode_to(const std::filesystem::path& path, std::string_view text,
                      const Tokenizer& tokenizer, ProgressBar& bar) {
  constexpr std::size_t piece = 1 << 20;
  TokenFileWriter writer(path);
  while (!text.empty()) {
    const std::size_t end = text.size() <= piece ? text.size() : piece_end(text, piece);
    writer.append(tokenizer.encode(text.substr(0, end)));
    text.remove_prefix(end);
    bar.advance(static_cast<double>(end));
  }
  writer.finish();
  return writer.size();
}

int run(const Options& o) {
  if (o.output.empty() == o.encode_only.empty())
    fail("give --output FOLDER or --encode-only FILE", ErrorKind::usage);
  const std::string text = read_text(o.input);
  const auto tokenizer = make_tokenizer(o, text);
  ProgressBar bar("encoding", static_cast<double>(text.size()));
  if (!o.encode_only.empty()) {
    const std::size_t count = encode_to(o.encode_only, text, *tokenizer, bar);
    fmt::print("{} tokens in {}\n", count, o.encode_only);
    return 0;
  }
  const std::filesystem::path folder = o.output;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    fail(fmt::format("--output {} cannot be made: {}", o.output, error.message()),
         ErrorKind::usage);
  if (has_tokenizer(folder) && load_tokenizer(folder)->kind() != tokenizer->kind())
    fail(fmt::format("{} holds data of the {} tokenizer; give another --output", o.output,
                     load_tokenizer(folder)->kind()),
         ErrorKind::usage);
  const std::size_t border = text_border(text, 1 - o.val_fraction);
  const std::string_view all(text);
  const std::size_t train = encode_to(folder / "train.bin", all.substr(0, border), *tokenizer, bar);
  std::size_t val = 0;
  std::filesystem::remove(folder / "val.bin");  // of an earlier text
  if (border < text.size())
    val = encode_to(folder / "val.bin", all.substr(border), *tokenizer, bar);
  tokenizer->save(folder);
  fmt::print("{} training and {} validation tokens ({}) in {}\n", train, val, tokenizer->kind(),
             o.output);
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
