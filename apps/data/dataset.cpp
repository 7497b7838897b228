#include "apps/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/data/encode_text.h"
#include "apps/data/special_names.h"
#include "apps/data/tokens/prepared_folder.h"
#include "engine/io/file.h"
#include "engine/io/token_file.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Collects the tokens of encoded text in memory.
class MemorySink {
 public:
  MemorySink(const Tokenizer& tokenizer, bool special)
      : narrow_(token_bytes(tokenizer.vocab_size()) == 2),
        encoder_(tokenizer, special, [this](std::span<const std::int32_t> ids) {
          for (const std::int32_t id : ids)
            if (narrow_)
              ids_.push_back(static_cast<std::uint16_t>(id));
            else
              wide_ids_.push_back(id);
        }) {}
  MemorySink(const MemorySink&) = delete;
  MemorySink& operator=(const MemorySink&) = delete;

  DocumentEncoder& encoder() { return encoder_; }
  std::unique_ptr<TokenSource> take() {
    if (ids_.empty() && wide_ids_.empty()) return nullptr;
    ids_.shrink_to_fit();
    wide_ids_.shrink_to_fit();
    return narrow_ ? tokens_in_memory(std::move(ids_))
                   : wide_tokens_in_memory(std::move(wide_ids_));
  }

 private:
  bool narrow_;
  std::vector<std::uint16_t> ids_;
  std::vector<std::int32_t> wide_ids_;
  DocumentEncoder encoder_;
};

void require_tokenizer(const Tokenizer* tokenizer, const std::string& name) {
  if (tokenizer == nullptr)
    fail(fmt::format("{} is text, and there is no tokenizer for it: give --tokenizer-dir", name),
         ErrorKind::usage);
}

std::string name_of(const TextFile& file) {
  return file.path == "-" ? "the standard input" : file.path.string();
}

/// Adds notes about a reading; none for a single file that was read completely.
void note(std::vector<std::string>& notes, const std::string& flag, const TextReport& report,
          const std::string& more) {
  if (report.documents > 1) notes.push_back(report.text() + more);
  if (!report.skipped.none())
    notes.push_back(fmt::format("left out of {}: {}", flag, report.skipped.text()));
}

void read_text_into(Dataset& dataset, const DataInput& data, bool divide, const TextOptions& o,
                    const Tokenizer& tokenizer) {
  const TextScan found = scan(*data.text, tokenizer, o.special, "--data");
  MemorySink train(tokenizer, o.special), val(tokenizer, o.special);
  encode_text(*data.text, found, training_bytes(found.documents, divide ? 0.9 : 1, o.split_seed),
              train.encoder(), val.encoder());
  note(dataset.notes, "--data", found.report,
       found.documents.size() < few_documents || !divide
           ? ""
           : fmt::format("; {} for validation", val.encoder().documents()));
  dataset.train = train.take();
  dataset.val = val.take();
}

/// Names the part of a folder that is set aside, which may turn out to be empty.
constexpr const char* validation_part = "for validation";

/// Refuses to pack what are no pairs.
void require_no_packing(const Pairs::Length& length, const std::string& name) {
  if (length.pack)
    fail(fmt::format("--pack is for pairs, and {} has none; make them with prepare_data --pairs",
                     name),
         ErrorKind::usage);
}

/// Opens token files: pairs if there is a mask beside them. `flag`: names them in the notes.
std::unique_ptr<TokenSource> open_files(const std::vector<fs::path>& files, std::int64_t vocab_size,
                                        const Pairs::Length& length, const std::string& flag,
                                        std::vector<std::string>& notes) {
  if (!has_mask(files.front())) require_no_packing(length, files.front().string());
  for (const fs::path& file : files)
    if (files.size() > 1 && has_mask(file))
      fail(fmt::format("{} has a mask, and pairs are in one file; give it alone", file.string()),
           ErrorKind::usage);
  auto pairs = open_pairs(files.front(), vocab_size, length);
  if (!pairs) return open_token_files(files, vocab_size);
  notes.push_back(fmt::format("{}: {}", flag, pairs->text()));
  if (flag != validation_part) pairs->require_some(files.front().string());
  return pairs;
}

/// Refuses a folder in which one part has lost its mask: its prompts would be learned.
void require_masks(const DataFiles& files) {
  if (files.folder.empty() || files.tokens.empty() || files.val_tokens.empty()) return;
  const fs::path &train = files.tokens.front(), &val = files.val_tokens.front();
  if (has_mask(train) != has_mask(val))
    fail(fmt::format("{} has a mask and {} has none; make both anew with prepare_data",
                     (has_mask(train) ? train : val).string(),
                     (has_mask(train) ? val : train).string()),
         ErrorKind::usage);
}

}  // namespace

DataInput::DataInput(DataFiles found, const TextOptions& options) : files(std::move(found)) {
  if (!files.texts.empty()) text.emplace(files, options);
}

bool has_pairs(const DataFiles& files) {
  return !files.tokens.empty() && has_mask(files.tokens.front());
}

void require_made_with(const std::string& flag, const DataFiles& files, const Tokenizer& tokenizer,
                       const std::string& whose) {
  require_made_with(flag, files.tokens, tokenizer, whose);
  require_made_with(flag, files.val_tokens, tokenizer, whose);
}

void require_streams_once(const DataFiles& data, const DataFiles& val, int ranks) {
  for (const DataFiles* const files : {&data, &val})
    for (const TextFile& file : files->texts)
      if (file.stream && ranks > 1)
        fail(fmt::format("{} can be read once, and each of {} ranks reads the data; write it to a "
                         "file first, or use prepare_data",
                         name_of(file), ranks),
             ErrorKind::usage);
  for (const TextFile& file : data.texts)
    for (const TextFile& other : val.texts) {
      std::error_code none;  // equivalent() does not work on pipes
      if (file.stream && other.stream &&
          (file.path == other.path ||
           fs::canonical(file.path, none) == fs::canonical(other.path, none)))
        fail(fmt::format("--data and --val-data both name {}, which can be read once",
                         name_of(file)),
             ErrorKind::usage);
    }
}

Dataset open_dataset(const DataInput& data, const DataInput* val, const TextOptions& options,
                     const Tokenizer* tokenizer, std::int64_t vocab_size,
                     const Pairs::Length& length) {
  Dataset dataset;
  const DataFiles& files = data.files;
  require_masks(files);
  if (data.text) {
    require_no_packing(length, files.name);
    require_tokenizer(tokenizer, files.name);
    read_text_into(dataset, data, val == nullptr, options, *tokenizer);
  } else {
    if (files.tokens.empty())
      fail(fmt::format("{} holds tokens for validation alone: {}", files.name,
                       files.val_tokens.front().string()),
           ErrorKind::usage);
    dataset.train = open_files(files.tokens, vocab_size, length, "for training", dataset.notes);
    if (val == nullptr && !files.val_tokens.empty())
      dataset.val =
          open_files(files.val_tokens, vocab_size, length, validation_part, dataset.notes);
  }
  if (val != nullptr)
    dataset.val =
        open_tokens("--val-data", *val, options, tokenizer, vocab_size, length, dataset.notes);
  if (dataset.val && dataset.val->in_rows() && dataset.val->size() == 0) dataset.val = nullptr;
  if (!dataset.val) return dataset;
  // Sequences of both have one length.
  const std::int64_t row = dataset.train->in_rows()
                               ? std::max(dataset.train->row(), dataset.val->row())
                               : 1 + length.given.value_or(length.most);
  dataset.train->pad_rows(row);
  dataset.val->pad_rows(row);
  return dataset;
}

std::unique_ptr<TokenSource> open_tokens(const std::string& flag, const DataInput& input,
                                         const TextOptions& options, const Tokenizer* tokenizer,
                                         std::int64_t vocab_size, const Pairs::Length& length,
                                         std::vector<std::string>& notes) {
  const DataFiles& files = input.files;
  if (!input.text) {
    if (!files.folder.empty() && files.val_tokens.empty())
      fail(fmt::format("{} has no val.bin", files.folder.string()), ErrorKind::usage);
    require_masks(files);
    return open_files(files.val_tokens.empty() ? files.tokens : files.val_tokens, vocab_size,
                      length, flag, notes);
  }
  require_no_packing(length, files.name);
  require_tokenizer(tokenizer, files.name);
  MemorySink sink(*tokenizer, options.special);
  SpecialNames names(*tokenizer, options.special);
  const TextReport report = input.text->read([&](const Document& document) {
    names.look_at(document.text);
    sink.encoder().add(document);
  });
  names.warn(flag);
  note(notes, flag, report, flag == "--val-data" ? " for validation" : "");
  return sink.take();
}

std::string read_text(const fs::path& path) {
  const File file = File::open(path);
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  if (text.empty()) fail(fmt::format("{} is empty", path.string()), ErrorKind::usage);
  return text;
}

}  // namespace sluice
