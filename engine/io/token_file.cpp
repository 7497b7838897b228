#include "engine/io/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "engine/io/section_sums.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are copied as they lie in the file");

constexpr std::size_t chunk_ids = 32768;  // read at once; a multiple of a page

/// llm.c's headers.
struct Format {
  std::int32_t magic, version;
  std::size_t id_bytes;
};
constexpr Format formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr std::uint64_t header_bytes = 256 * sizeof(std::int32_t);

/// The layout of a file: its ids begin after llm.c's header or, without one, at byte 0.
struct Layout {
  std::uint64_t start = 0;
  std::size_t id_bytes = 2;
};

Layout layout_of(const File& file, std::uint64_t file_size) {
  struct {
    std::int32_t magic, version, count;
  } header{};
  const std::uint64_t available = std::min<std::uint64_t>(file_size, sizeof header);
  file.read_at(0, std::as_writable_bytes(std::span(&header, 1)).first(available));
  const Format* const format = std::ranges::find(formats, header.magic, &Format::magic);
  if (format == std::end(formats)) return {};

  const std::string name = file.path().string();
  if (file_size < header_bytes)
    fail(fmt::format("{} begins like a token file of llm.c, but its {} bytes are less than that "
                     "header's {}",
                     name, file_size, header_bytes),
         ErrorKind::usage);
  if (header.version != format->version)
    fail(fmt::format("{} is a token file of llm.c of version {}; only version {} can be read", name,
                     header.version, format->version),
         ErrorKind::usage);
  const std::uint64_t body_bytes = file_size - header_bytes;
  const auto count = checked_narrow<std::uint64_t>(header.count);
  if (!count || body_bytes % format->id_bytes != 0 || *count != body_bytes / format->id_bytes)
    fail(fmt::format("{}: the header claims {} tokens of {} bytes, but {} bytes follow it; is it "
                     "truncated?",
                     name, header.count, format->id_bytes, body_bytes),
         ErrorKind::usage);
  return {header_bytes, format->id_bytes};
}

template <class Id>
void widen_as(std::span<const std::byte> stored, std::int32_t* out) {
  for (std::size_t at = 0; at < stored.size(); at += sizeof(Id)) {
    Id id;
    std::memcpy(&id, stored.data() + at, sizeof id);
    *out++ = static_cast<std::int32_t>(id);
  }
}

/// Converts stored ids. Those beyond 31 bits become negative.
void widen(std::span<const std::byte> stored, std::size_t id_bytes, std::int32_t* out) {
  if (id_bytes == 2) return widen_as<std::uint16_t>(stored, out);
  widen_as<std::uint32_t>(stored, out);
}

}  // namespace

TokenFile::TokenFile(std::filesystem::path path) : file_(File::open(std::move(path))) {
  const std::uint64_t file_size = file_.size();
  const Layout layout = layout_of(file_, file_size);
  data_start_ = layout.start;
  id_bytes_ = layout.id_bytes;
  const std::uint64_t body_bytes = file_size - data_start_;
  const std::string name = file_.path().string();
  if (body_bytes == 0) fail(fmt::format("{} holds no tokens", name), ErrorKind::usage);
  if (body_bytes % id_bytes_ != 0)
    fail(fmt::format("{} has {} bytes, an odd number, but tokens have {} bytes each; "
                     "prepare_data makes token files from text",
                     name, file_size, id_bytes_),
         ErrorKind::usage);
  size_ = static_cast<std::size_t>(body_bytes / id_bytes_);
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
  std::array<std::byte, page_ids * sizeof(std::int32_t)> page;
  while (!out.empty()) {
    const std::size_t number = start / page_ids, end = std::min((number + 1) * page_ids, size_);
    const std::size_t stop = std::min(end, start + out.size());
    if (sums_.empty()) {
      const auto ids = std::span(page).first((stop - start) * id_bytes_);
      read_stored(start, ids);
      widen(ids, id_bytes_, out.data());
    } else {  // only a whole page can be compared with its checksum
      const std::size_t first = number * page_ids;
      const auto ids = std::span(page).first((end - first) * id_bytes_);
      read_stored(first, ids);
      check_page(number, ids);
      widen(ids.subspan((start - first) * id_bytes_, (stop - start) * id_bytes_), id_bytes_,
            out.data());
    }
    out = out.subspan(stop - start);
    start = stop;
  }
}

void TokenFile::read_stored(std::size_t start, std::span<std::byte> out) const {
  file_.read_at(data_start_ + start * id_bytes_, out);
}

void TokenFile::check_page(std::size_t page, std::span<const std::byte> ids) const {
  if (crc32_of(ids) == sums_[page]) return;
  fail(
      fmt::format("{}: the tokens at positions {} to {} are not those that it had when it was "
                  "opened: the file was changed while it was in use; write new tokens to a new "
                  "file",
                  path().string(), page * page_ids, page * page_ids + ids.size() / id_bytes_ - 1));
}

std::uint32_t TokenFile::read_all(std::int64_t vocab_size, std::uint32_t before) {
  std::vector<std::uint32_t> sums;
  sums.reserve((size_ + page_ids - 1) / page_ids);
  std::vector<std::byte> stored;
  std::vector<std::int32_t> ids(std::min(size_, chunk_ids));
  for (std::size_t start = 0; start < size_; start += ids.size()) {
    ids.resize(std::min(ids.size(), size_ - start));
    stored.resize(ids.size() * id_bytes_);
    read_stored(start, stored);
    widen(stored, id_bytes_, ids.data());
    // As unsigned numbers, ids beyond 31 bits are the largest. The compiler vectorizes this loop.
    std::uint32_t largest = 0;
    for (const std::int32_t id : ids)
      largest = std::max(largest, static_cast<std::uint32_t>(id));
    if (largest >= vocab_size) {
      const auto is_bad = [&](std::int32_t id) {
        return static_cast<std::uint32_t>(id) >= vocab_size;
      };
      const auto bad = std::ranges::find_if(ids, is_bad);
      fail(fmt::format("{}: the token at position {} is {}, but the vocabulary has only {} ids; "
                       "the file was made with another tokenizer",
                       path().string(), start + static_cast<std::size_t>(bad - ids.begin()),
                       static_cast<std::uint32_t>(*bad), vocab_size),
           ErrorKind::usage);
    }
    for (std::span<const std::byte> rest = stored; !rest.empty();) {
      const auto page = rest.first(std::min(page_ids * id_bytes_, rest.size()));
      sums.push_back(crc32_of(page));
      before = crc32_joined(before, sums.back(), page.size());
      rest = rest.subspan(page.size());
    }
  }
  sums_ = std::move(sums);
  return before;
}

std::uint64_t token_file_start(std::size_t id_bytes) {
  check(id_bytes == 2 || id_bytes == 4, "token ids have 2 or 4 bytes");
  return id_bytes == 4 ? header_bytes : 0;
}

std::vector<std::byte> token_file_header(const std::filesystem::path& path, std::uint64_t tokens,
                                         std::size_t id_bytes) {
  std::vector<std::byte> bytes(token_file_start(id_bytes));
  if (bytes.empty()) return bytes;
  const auto count = checked_narrow<std::int32_t>(tokens);
  if (!count)
    fail(fmt::format("{} would have {} tokens, more than its header can say; write several files "
                     "(prepare_data --shard-tokens)",
                     path.string(), tokens),
         ErrorKind::usage);
  const std::int32_t header[] = {formats[1].magic, formats[1].version, *count};
  std::memcpy(bytes.data(), header, sizeof header);
  return bytes;
}

void store_tokens(std::span<const std::int32_t> ids, std::size_t id_bytes,
                  const std::filesystem::path& path, std::uint64_t position,
                  std::vector<std::byte>& out) {
  for (const std::int32_t id : ids) {
    if (id < 0 || (id_bytes == 2 && id > 65535))
      fail(fmt::format("{}: the token at position {} is {}, but the format holds 0 to {} only",
                       path.string(), position, id,
                       id_bytes == 2 ? 65535 : std::numeric_limits<std::int32_t>::max()),
           ErrorKind::usage);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&id);
    out.insert(out.end(), bytes, bytes + id_bytes);
    ++position;
  }
}

TokenFileWriter::TokenFileWriter(std::filesystem::path path, std::size_t id_bytes)
    : file_(std::move(path)), id_bytes_(id_bytes) {
  // The header's place; complete() knows what belongs there.
  file_.write(std::vector<std::byte>(token_file_start(id_bytes)));
}

void TokenFileWriter::append(std::span<const std::int32_t> ids) {
  while (!ids.empty()) {
    const auto some = ids.first(std::min(ids.size(), chunk_ids));
    store_tokens(some, id_bytes_, file_.path(), size_, buffer_);
    size_ += some.size();
    ids = ids.subspan(some.size());
    if (buffer_.size() >= chunk_ids * id_bytes_) flush();
  }
}

void TokenFileWriter::complete() {
  if (size_ == 0)
    fail(fmt::format("{} was not written: there are no tokens", file_.path().string()),
         ErrorKind::usage);
  if (!buffer_.empty()) flush();
  if (!complete_) file_.write_at(0, token_file_header(file_.path(), size_, id_bytes_));
  complete_ = true;
  file_.complete();
}

void TokenFileWriter::finish() {
  complete();
  file_.commit();
}

void TokenFileWriter::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

}  // namespace sluice
