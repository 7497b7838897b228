#include "apps/train/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/io/file.h"
#include "engine/io/section_sums.h"
#include "engine/io/token_file.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class FileTokens final : public TokenSource {
 public:
  FileTokens(const fs::path& file, std::int64_t vocab_size) : file_(file) {
    file_.check_ids(vocab_size);
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(file_.size()); }
  void read(std::int64_t start, std::span<std::int32_t> out) const override {
    file_.read(static_cast<std::size_t>(start), out);
  }

 private:
  TokenFile file_;
};

class MemoryTokens final : public TokenSource {
 public:
  explicit MemoryTokens(std::span<const std::int32_t> ids) : ids_(ids.size()) {
    std::ranges::transform(ids, ids_.begin(),
                           [](std::int32_t id) { return static_cast<std::uint16_t>(id); });
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(ids_.size()); }
  void read(std::int64_t start, std::span<std::int32_t> out) const override {
    std::copy_n(ids_.begin() + start, out.size(), out.begin());
  }

 private:
  std::vector<std::uint16_t> ids_;  // half the memory; larger vocabularies are refused before
};

std::unique_ptr<TokenSource> encode(std::string_view text, const Tokenizer& tokenizer) {
  if (tokenizer.vocab_size() > 65536)
    fail(fmt::format("the tokenizer has {} tokens; tokens are kept as 16-bit numbers, so 65536 is "
                     "the limit",
                     tokenizer.vocab_size()),
         ErrorKind::usage);
  return tokens_in_memory(tokenizer.encode(text));
}

}  // namespace

std::unique_ptr<TokenSource> open_token_file(const fs::path& file, std::int64_t vocab_size) {
  return std::make_unique<FileTokens>(file, vocab_size);
}

std::unique_ptr<TokenSource> tokens_in_memory(std::span<const std::int32_t> ids) {
  return std::make_unique<MemoryTokens>(ids);
}

std::string fingerprint(const TokenSource& tokens) {
  constexpr std::int64_t stretch = 1 << 16;
  std::vector<std::int32_t> ids;
  std::uint32_t sum = 0;
  for (const std::int64_t at : {std::int64_t{0}, tokens.size() / 2, tokens.size() - stretch}) {
    const std::int64_t start = std::clamp<std::int64_t>(at, 0, tokens.size());
    ids.resize(static_cast<std::size_t>(std::min(stretch, tokens.size() - start)));
    tokens.read(start, ids);
    sum = crc32_of(std::as_bytes(std::span(ids)), sum);
  }
  return fmt::format("{}-{:08x}", tokens.size(), sum);
}

bool is_token_data(const fs::path& data) {
  return fs::is_directory(data) || data.extension() == ".bin";
}

std::string read_text(const fs::path& path) {
  const File file = File::open(path);
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  if (text.empty()) fail(fmt::format("{} is empty", path.string()), ErrorKind::usage);
  return text;
}

std::size_t text_border(std::string_view text, double fraction) {
  auto border = static_cast<std::size_t>(static_cast<double>(text.size()) * fraction + 1e-6);
  border = std::min(border, text.size());
  const auto inside = [&](std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  while (border > 0 && inside(border))
    --border;
  // At least something to train on, however short the text.
  return border == 0 ? text.size() : border;
}

Dataset open_dataset(const fs::path& data, const fs::path& val_data, const Tokenizer* tokenizer,
                     std::int64_t vocab_size) {
  Dataset dataset;
  if (!is_token_data(data) || (!val_data.empty() && !is_token_data(val_data)))
    check(tokenizer != nullptr, "text needs a tokenizer");
  if (fs::is_directory(data)) {
    if (!fs::exists(data / "train.bin"))
      fail(fmt::format("{} has no train.bin; prepare_data makes such a folder", data.string()),
           ErrorKind::usage);
    dataset.train = open_token_file(data / "train.bin", vocab_size);
    if (fs::exists(data / "val.bin")) dataset.val = open_token_file(data / "val.bin", vocab_size);
  } else if (data.extension() == ".bin") {
    dataset.train = open_token_file(data, vocab_size);
  } else {
    const std::string text = read_text(data);
    const std::size_t border = val_data.empty() ? text_border(text, 0.9) : text.size();
    if (border < text.size())
      dataset.val = encode(std::string_view(text).substr(border), *tokenizer);
    dataset.train = encode(std::string_view(text).substr(0, border), *tokenizer);
  }
  if (!val_data.empty())
    dataset.val =
        is_token_data(val_data)
            ? open_token_file(fs::is_directory(val_data) ? val_data / "val.bin" : val_data,
                              vocab_size)
            : encode(read_text(val_data), *tokenizer);
  return dataset;
}

}  // namespace sluice
