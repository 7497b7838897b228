#include "apps/data/tokens/token_source.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "engine/io/section_sums.h"
#include "engine/io/token_file.h"
#include "kernels/base/error.h"
#include "kernels/cross_entropy.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// The tokens of several files, one file after another.
class FileTokens final : public TokenSource {
 public:
  FileTokens(const std::vector<fs::path>& paths, std::int64_t vocab_size) {
    for (const fs::path& path : paths) {
      TokenFile& file = files_.emplace_back(path);
      if (file.id_bytes() != files_.front().id_bytes())
        fail(fmt::format("{} has tokens of {} bytes, {} of {}; give files of one tokenizer",
                         paths.front().string(), files_.front().id_bytes(), path.string(),
                         file.id_bytes()),
             ErrorKind::usage);
      if (file.has_header() != files_.front().has_header())
        fail(fmt::format("{} and {} are token files of two formats, {} llm.c's header and {}; give "
                         "those of one",
                         paths.front().string(), path.string(),
                         files_.front().has_header() ? "with" : "without",
                         file.has_header() ? "with" : "without"),
             ErrorKind::usage);
      checksum_ = file.read_all(vocab_size, checksum_);
      starts_.push_back(size_);
      size_ += static_cast<std::int64_t>(file.size());
    }
  }
  std::int64_t size() const override { return size_; }
  std::uint32_t checksum() const override { return checksum_; }
  void read(std::int64_t start, std::span<std::int32_t> out) const override {
    const auto after = std::ranges::upper_bound(starts_, start);
    auto at = static_cast<std::size_t>(after - starts_.begin()) - 1;
    auto inside = static_cast<std::size_t>(start - starts_[at]);
    for (; !out.empty() && at < files_.size(); ++at, inside = 0) {
      // The last file is also asked for tokens beyond its end, which its read() refuses.
      const std::size_t here =
          at + 1 == files_.size() ? out.size() : std::min(out.size(), files_[at].size() - inside);
      files_[at].read(inside, out.first(here));
      out = out.subspan(here);
    }
  }

 private:
  std::vector<TokenFile> files_;
  std::vector<std::int64_t> starts_;
  std::int64_t size_ = 0;
  std::uint32_t checksum_ = 0;
};

template <class Id>
class MemoryTokens final : public TokenSource {
 public:
  explicit MemoryTokens(std::vector<Id> ids) : ids_(std::move(ids)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(ids_.size()); }
  void read(std::int64_t start, std::span<std::int32_t> out) const override {
    std::copy_n(ids_.begin() + start, out.size(), out.begin());
  }
  std::uint32_t checksum() const override { return crc32_of(std::as_bytes(std::span(ids_))); }

 private:
  std::vector<Id> ids_;
};

/// Raises the limit on open files: all shards stay open, and the usual 1024 are soon used up. That
/// limit exists for programs that use select(); this one does not.
void allow_open_files(std::size_t count) {
  constexpr std::size_t usual = 500;
  rlimit limit{};
  if (count <= usual || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if it fails, opening will name the file
}

}  // namespace

void TokenSource::read_counted(std::int64_t, std::span<std::uint8_t> out) const {
  std::ranges::fill(out, std::uint8_t{1});
}

void append_sequence(const TokenSource& tokens, std::int64_t start, std::int64_t length,
                     Sequences& sequences) {
  const auto count = static_cast<std::size_t>(length);
  std::vector<std::int32_t> ids(count + 1);
  tokens.read(start, ids);
  tokens.append_documents(start, static_cast<std::int64_t>(sequences.tokens.size()), length,
                          sequences.documents);
  sequences.tokens.insert(sequences.tokens.end(), ids.begin(), ids.end() - 1);
  if (tokens.in_rows()) {
    std::vector<std::uint8_t> counted(count);
    tokens.read_counted(start + 1, counted);
    for (std::size_t i = 0; i < count; ++i)
      if (counted[i] == 0) ids[i + 1] = no_target;
  }
  sequences.targets.insert(sequences.targets.end(), ids.begin() + 1, ids.end());
}

std::int64_t counted_targets(const TokenSource& tokens, std::int64_t start, std::int64_t length) {
  if (!tokens.in_rows()) return length;
  std::vector<std::uint8_t> counted(static_cast<std::size_t>(length));
  tokens.read_counted(start + 1, counted);
  return std::ranges::count(counted, std::uint8_t{1});
}

std::unique_ptr<TokenSource> open_token_file(const fs::path& file, std::int64_t vocab_size) {
  return open_token_files({file}, vocab_size);
}

std::unique_ptr<TokenSource> open_token_files(const std::vector<fs::path>& files,
                                              std::int64_t vocab_size) {
  allow_open_files(files.size());
  return std::make_unique<FileTokens>(files, vocab_size);
}

std::unique_ptr<TokenSource> tokens_in_memory(std::span<const std::int32_t> ids) {
  std::vector<std::uint16_t> narrow(ids.size());
  std::ranges::transform(ids, narrow.begin(),
                         [](std::int32_t id) { return static_cast<std::uint16_t>(id); });
  return tokens_in_memory(std::move(narrow));
}

std::unique_ptr<TokenSource> tokens_in_memory(std::vector<std::uint16_t> ids) {
  return std::make_unique<MemoryTokens<std::uint16_t>>(std::move(ids));
}

std::unique_ptr<TokenSource> wide_tokens_in_memory(std::vector<std::int32_t> ids) {
  return std::make_unique<MemoryTokens<std::int32_t>>(std::move(ids));
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

}  // namespace sluice
