#include "engine/io/input.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <new>
#include <vector>

#include "kernels/base/error.h"

namespace sluice {
namespace {

class PlainInput final : public Input {
 public:
  explicit PlainInput(const File& file) : file_(file), size_(file.size()) {}

  std::size_t read(std::span<std::byte> out) override {
    out = out.first(std::min<std::uint64_t>(out.size(), size_ - at_));
    file_.read_at(at_, out);
    at_ += out.size();
    return out.size();
  }

 private:
  const File& file_;
  std::uint64_t size_;  // size at the start; bytes appended later are not read
  std::uint64_t at_ = 0;
};

class GzipInput final : public Input {
 public:
  explicit GzipInput(const File& file) : file_(file), compressed_(file), buffer_(1 << 16) {
    constexpr int gzip_alone = 16;
    if (inflateInit2(&zlib_, MAX_WBITS + gzip_alone) != Z_OK) throw std::bad_alloc();
  }
  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;
  ~GzipInput() override { inflateEnd(&zlib_); }

  std::size_t read(std::span<std::byte> out) override {
    std::size_t done = 0;
    while (done < out.size() && (inside_ || next_member()))
      done += inflate_some(out.subspan(done));
    return done;
  }

 private:
  /// Position in the compressed file of the first byte that zlib has not consumed.
  std::uint64_t place() const { return taken_ - zlib_.avail_in; }

  bool refill() {
    if (zlib_.avail_in > 0) return true;
    const std::size_t got = compressed_.read(std::as_writable_bytes(std::span(buffer_)));
    taken_ += got;
    zlib_.next_in = buffer_.data();
    zlib_.avail_in = static_cast<uInt>(got);
    return got > 0;
  }

  /// True if a gzip member begins here. Like gzip, ignores zeros after the last (tapes have them).
  bool next_member() {
    while (refill() && members_ > 0 && *zlib_.next_in == 0) {
      ++zlib_.next_in;
      --zlib_.avail_in;
    }
    if (zlib_.avail_in == 0) return false;
    constexpr Bytef gzip_begins = 0x1f;
    if (members_ > 0 && *zlib_.next_in != gzip_begins)
      fail(fmt::format("{}: after the gzip data something else follows at byte {}; was it joined "
                       "with another file?",
                       file_.path().string(), place()),
           ErrorKind::usage);
    ++members_;
    inflateReset(&zlib_);
    return inside_ = true;
  }

  std::size_t inflate_some(std::span<std::byte> out) {
    if (!refill())
      fail(fmt::format("{} ends after {} bytes inside its gzip data: it is truncated",
                       file_.path().string(), taken_),
           ErrorKind::usage);
    constexpr std::size_t most = std::size_t{1} << 30;  // zlib counts in 32 bits
    const auto wanted = static_cast<uInt>(std::min(out.size(), most));
    zlib_.next_out = reinterpret_cast<Bytef*>(out.data());
    zlib_.avail_out = wanted;
    const int result = inflate(&zlib_, Z_NO_FLUSH);
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      fail(fmt::format("{} is not valid gzip data at byte {}: {}", file_.path().string(), place(),
                       zlib_.msg != nullptr ? zlib_.msg : "unknown"),
           ErrorKind::usage);
    inside_ = result != Z_STREAM_END;
    return wanted - zlib_.avail_out;
  }

  const File& file_;
  PlainInput compressed_;
  std::vector<Bytef> buffer_;
  z_stream zlib_{};
  std::uint64_t taken_ = 0;
  std::int64_t members_ = 0;
  bool inside_ = false;  // inside a member
};

}  // namespace

std::unique_ptr<Input> open_input(const File& file) {
  return std::make_unique<PlainInput>(file);
}

std::unique_ptr<Input> open_gzip(const File& file) {
  return std::make_unique<GzipInput>(file);
}

}  // namespace sluice
