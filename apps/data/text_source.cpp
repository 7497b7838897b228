#include "apps/data/text_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

#include "apps/cli/progress.h"
#include "apps/data/document_split.h"
#include "apps/data/json_lines.h"
#include "engine/io/input.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

fs::path temporary_folder() try {
  return fs::temp_directory_path();
} catch (const fs::filesystem_error&) {
  const char* const named = std::getenv("TMPDIR");
  fail(fmt::format("TMPDIR={}: there is no such folder, and input that can be read once is copied "
                   "to it; name another, or write the input to a file first",
                   named != nullptr ? named : ""),
       ErrorKind::usage);
}

File copy_of_stream(const fs::path& path, const fs::path& folder) {
  File stream = path == "-" ? File::standard_input() : File::open_stream(path);
  File copy = File::temporary(folder.empty() ? temporary_folder() : folder);
  std::vector<std::byte> buffer(1 << 16);
  while (const std::size_t got = stream.read(buffer))
    copy.write(std::span(buffer).first(got));
  return copy;
}

/// Tells gzip data by its file name; data from a pipe has no name, so its first bytes decide.
bool is_compressed(const TextFile& file, const File& opened) {
  if (file.path.extension() == ".gz") return true;
  std::array<unsigned char, 2> begin{};
  if (!file.stream || opened.size() < begin.size()) return false;
  opened.read_at(0, std::as_writable_bytes(std::span(begin)));
  return begin[0] == 0x1f && begin[1] == 0x8b;
}

std::string read_whole(Input& input, std::uint64_t expected) {
  std::string text(std::max<std::uint64_t>(expected, 1), '\0');
  for (std::size_t size = 0;;) {
    const std::size_t got = input.read(std::as_writable_bytes(std::span(text).subspan(size)));
    size += got;
    if (size < text.size()) {
      text.resize(size);
      return text;
    }
    text.resize(size * 2);
  }
}

std::string counted(std::int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

bool is_json_lines(const TextFile& file, std::optional<TextFormat> format) {
  if (format) return format == TextFormat::jsonl;
  const fs::path name = file.path.extension() == ".gz" ? file.path.stem() : file.path;
  return name.extension() == ".jsonl" || name.extension() == ".ndjson";
}

bool any_json_lines(const DataFiles& files, std::optional<TextFormat> format) {
  return std::ranges::any_of(files.texts,
                             [&](const TextFile& file) { return is_json_lines(file, format); });
}

std::vector<NoEffect> text_rules(bool text, bool json, const std::string& name, bool few) {
  return {{!text, "--text-format --text-field --skip-bad-lines --split-seed",
           fmt::format("is for text, and {} holds tokens", name)},
          {!json, "--text-field --skip-bad-lines",
           fmt::format("is for JSON Lines, and {} is plain text (--text-format jsonl reads it as "
                       "such)",
                       name)},
          {few, "--split-seed",
           fmt::format("draws documents for validation, and of fewer than {} the end is taken",
                       few_documents)}};
}

std::string TextReport::text() const {
  return fmt::format("{}, {}, {} byte{}", counted(files, "file"), counted(documents, "document"),
                     format_count(static_cast<double>(bytes)), bytes == 1 ? "" : "s");
}

TextSource::TextSource(const DataFiles& files, TextOptions options, const fs::path& folder)
    : options_(std::move(options)), name_(files.name), skipped_(files.skipped) {
  for (const TextFile& file : files.texts) {
    TextInput& input = inputs_.emplace_back(TextInput{.file = file, .copy = nullptr});
    if (file.stream) input.copy = std::make_shared<File>(copy_of_stream(file.path, folder));
    if (file.path == "-") input.file.path = "the standard input";
  }
}

TextReport TextSource::read(const Take& take) const {
  TextReport report;
  report.skipped = skipped_;
  for (const TextInput& input : inputs_)
    read(input, report, take);
  if (report.documents == 0)
    fail(fmt::format("{} holds no text: there is only {}", name_, report.skipped.text()),
         ErrorKind::usage);
  return report;
}

void TextSource::read(const TextInput& source, TextReport& report, const Take& take) const {
  const std::string name = source.file.path.string();
  std::optional<File> opened;
  if (!source.copy) opened = File::open(source.file.path);
  const File& file = source.copy ? *source.copy : *opened;
  const std::int64_t before = report.documents;
  const auto take_document = [&](const Document& document) {
    ++report.documents;
    report.bytes += document.text.size();
    take(document);
  };
  const bool compressed = is_compressed(source.file, file);
  // Empty input is no gzip data either, but is more likely meant to be empty than damaged.
  const auto input = compressed && file.size() > 0 ? open_gzip(file) : open_input(file);
  if (is_json_lines(source.file, options_.format)) {
    read_json_lines(*input, name, options_, report.skipped, take_document);
  } else {
    const std::string text = read_whole(*input, compressed ? 0 : file.size() + 1);
    if (text.empty())
      report.skipped.add("empty file", "empty files", name);
    else if (!source.file.as_is && text.find('\0') != text.npos)
      report.skipped.add("file with NUL bytes, so no text", "files with NUL bytes, so no texts",
                         name);
    else
      take_document({name, text});
  }
  if (report.documents > before) ++report.files;
}

}  // namespace sluice
