#include "engine/io/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "engine/io/section_sums.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are copied as they lie in the file");

constexpr std::uint64_t id_bytes = sizeof(std::uint16_t);
constexpr std::size_t chunk_ids = 32768;  // read at once; a multiple of a page

constexpr std::int32_t llmc_magic = 20240520;
constexpr std::int32_t llmc_version = 1;
constexpr std::uint64_t llmc_header_bytes = 256 * sizeof(std::int32_t);

/// Returns the offset of the ids: after llm.c's header, or 0 in a headerless file.
std::uint64_t find_data_start(const File& file, std::uint64_t file_size) {
  struct {
    std::int32_t magic, version, count;
  } header{};
  const std::uint64_t available = std::min<std::uint64_t>(file_size, sizeof header);
  file.read_at(0, std::as_writable_bytes(std::span(&header, 1)).first(available));
  if (header.magic != llmc_magic) return 0;

  const std::string name = file.path().string();
  if (file_size < llmc_header_bytes)
    fail(fmt::format("{} begins like a token file of llm.c, but its {} bytes are less than that "
                     "header's {}",
                     name, file_size, llmc_header_bytes),
         ErrorKind::usage);
  if (header.version != llmc_version)
    fail(fmt::format("{} is a token file of llm.c of version {}; only version {} can be read", name,
                     header.version, llmc_version),
         ErrorKind::usage);
  const std::uint64_t body_bytes = file_size - llmc_header_bytes;
  const auto count = checked_narrow<std::uint64_t>(header.count);
  if (!count || body_bytes % id_bytes != 0 || *count != body_bytes / id_bytes)
    fail(fmt::format("{}: the header claims {} tokens of {} bytes, but {} bytes follow it; is it "
                     "truncated?",
                     name, header.count, id_bytes, body_bytes),
         ErrorKind::usage);
  return llmc_header_bytes;
}

}  // namespace

TokenFile::TokenFile(std::filesystem::path path) : file_(File::open(std::move(path))) {
  const std::uint64_t file_size = file_.size();
  data_start_ = find_data_start(file_, file_size);
  const std::uint64_t body_bytes = file_size - data_start_;
  const std::string name = file_.path().string();
  if (body_bytes == 0) fail(fmt::format("{} holds no tokens", name), ErrorKind::usage);
  if (body_bytes % id_bytes != 0)
    fail(fmt::format("{} has {} bytes, an odd number, but tokens have {} bytes each; "
                     "prepare_data makes token files from text",
                     name, file_size, id_bytes),
         ErrorKind::usage);
  size_ = static_cast<std::size_t>(body_bytes / id_bytes);
}

std::int32_t TokenFile::operator[](std::size_t position) const {
  std::int32_t id = 0;
  read(position, std::span(&id, 1));
  return id;
}

void TokenFile::read(std::size_t start, std::span<std::int32_t> out) const {
  if (start > size_ || out.size() > size_ - start)
    fail(fmt::format("{}: {} tokens from position {} were asked for, but the file has {}",
                     path().string(), out.size(), start, size_),
         ErrorKind::usage);
  std::array<std::uint16_t, page_ids> page;
  while (!out.empty()) {
    const std::size_t number = start / page_ids, end = std::min((number + 1) * page_ids, size_);
    const std::size_t stop = std::min(end, start + out.size());
    if (sums_.empty()) {
      read_ids(start, std::span(page).first(stop - start));
      std::copy_n(page.begin(), stop - start, out.begin());
    } else {  // only a whole page can be compared with its checksum
      const std::size_t first = number * page_ids;
      const auto ids = std::span(page).first(end - first);
      read_ids(first, ids);
      check_page(number, ids);
      std::ranges::copy(ids.subspan(start - first, stop - start), out.begin());
    }
    out = out.subspan(stop - start);
    start = stop;
  }
}

void TokenFile::read_ids(std::size_t start, std::span<std::uint16_t> out) const {
  file_.read_at(data_start_ + start * id_bytes, std::as_writable_bytes(out));
}

void TokenFile::check_page(std::size_t page, std::span<const std::uint16_t> ids) const {
  if (crc32_of(std::as_bytes(ids)) == sums_[page]) return;
  fail(
      fmt::format("{}: the tokens at positions {} to {} are not those that it had when it was "
                  "opened: the file was changed while it was in use; write new tokens to a new "
                  "file",
                  path().string(), page * page_ids, page * page_ids + ids.size() - 1));
}

std::uint32_t TokenFile::read_all(std::int64_t vocab_size, std::uint32_t before) {
  std::vector<std::uint32_t> sums;
  sums.reserve((size_ + page_ids - 1) / page_ids);
  std::vector<std::uint16_t> ids(std::min(size_, chunk_ids));
  for (std::size_t start = 0; start < size_; start += ids.size()) {
    ids.resize(std::min(ids.size(), size_ - start));
    read_ids(start, ids);
    std::uint16_t largest = 0;  // the compiler vectorizes this loop
    for (const std::uint16_t id : ids)
      largest = std::max(largest, id);
    if (largest >= vocab_size) {
      const auto bad = std::ranges::find_if(ids, [&](auto id) { return id >= vocab_size; });
      fail(fmt::format("{}: the token at position {} is {}, but the vocabulary has only {} ids; "
                       "the file was made with another tokenizer",
                       path().string(), start + static_cast<std::size_t>(bad - ids.begin()), *bad,
                       vocab_size),
           ErrorKind::usage);
    }
    for (auto rest = std::as_bytes(std::span(ids)); !rest.empty();) {
      const auto page = rest.first(std::min(page_ids * id_bytes, rest.size()));
      sums.push_back(crc32_of(page));
      before = crc32_joined(before, sums.back(), page.size());
      rest = rest.subspan(page.size());
    }
  }
  sums_ = std::move(sums);
  return before;
}

void TokenFileWriter::append(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    const auto narrow = checked_narrow<std::uint16_t>(id);
    if (!narrow)
      fail(fmt::format("{}: the token at position {} is {}, but the format holds 0 to 65535 only",
                       file_.path().string(), size_, id),
           ErrorKind::usage);
    buffer_.push_back(*narrow);
    ++size_;
    if (buffer_.size() == chunk_ids) flush();
  }
}

void TokenFileWriter::complete() {
  if (size_ == 0)
    fail(fmt::format("{} was not written: there are no tokens", file_.path().string()),
         ErrorKind::usage);
  if (!buffer_.empty()) flush();
  file_.complete();
}

void TokenFileWriter::finish() {
  complete();
  file_.commit();
}

void TokenFileWriter::flush() {
  file_.write(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

}  // namespace sluice
