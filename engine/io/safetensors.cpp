#include "engine/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/io/json_document.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

/// A file begins with the length of its header: 8 bytes, least significant first.
constexpr std::uint64_t length_bytes = 8;

std::uint64_t decode_length(std::span<const std::byte, length_bytes> bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return length;
}

std::array<std::byte, length_bytes> encode_length(std::uint64_t length) {
  std::array<std::byte, length_bytes> bytes{};
  for (std::size_t i = 0; i < length_bytes; ++i)
    bytes[i] = std::byte(length >> 8 * i & 0xFF);
  return bytes;
}

/// Recognizes, by the first bytes, files that people often have in place of weights by mistake.
std::string_view what_it_is(std::span<const std::byte, length_bytes> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text == "version ")
    return "a pointer of Git LFS: get the file itself by git lfs pull, or by a download";
  if (text.starts_with("<!") || text.starts_with("<html"))
    return "a web page: download the file itself";
  return "";
}

std::uint64_t read_header_length(const File& file, std::uint64_t file_size) {
  const std::string name = file.path().string();
  if (file_size < length_bytes)
    fail(fmt::format("{} has {} bytes, too few for a safetensors file", name, file_size),
         ErrorKind::usage);
  std::array<std::byte, length_bytes> bytes{};
  file.read_at(0, bytes);
  const std::uint64_t length = decode_length(bytes);
  if (const std::string_view other = what_it_is(bytes); !other.empty())
    fail(fmt::format("{} is not a safetensors file but {}", name, other), ErrorKind::usage);
  if (length > max_safetensors_header)
    fail(fmt::format("{}: the header claims {} bytes, more than the limit of {}; this is not a "
                     "safetensors file",
                     name, length, max_safetensors_header),
         ErrorKind::usage);
  if (length > file_size - length_bytes)
    fail(fmt::format("{}: the header claims {} bytes, but only {} follow; is it truncated?", name,
                     length, file_size - length_bytes),
         ErrorKind::usage);
  return length;
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::filesystem::path path)
    : file_(File::open(std::move(path))) {
  const std::uint64_t file_size = file_.size();
  const std::uint64_t length = read_header_length(file_, file_size);
  data_start_ = length_bytes + length;
  std::string text(length, '\0');
  file_.read_at(length_bytes, std::as_writable_bytes(std::span(text)));
  header_ = parse_safetensors_header(text, file_size - data_start_, file_.path().string());
  for (std::size_t i = 0; i < header_.tensors.size(); ++i)
    index_.emplace(header_.tensors[i].name, i);
}

const StoredTensor* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsReader::read(const StoredTensor& tensor, std::uint64_t offset,
                             std::span<std::byte> out) const {
  if (offset > tensor.byte_size() || out.size() > tensor.byte_size() - offset)
    fail(fmt::format("{}: {} bytes from byte {} were asked of tensor {}, which has {}",
                     path().string(), out.size(), offset, quote(tensor.name), tensor.byte_size()));
  file_.read_at(data_start_ + tensor.begin + offset, out);
  // A file of gigabytes that is read once must not push a training out of its memory limit.
  constexpr std::size_t large = 1 << 20;
  if (out.size() >= large) file_.drop_cache(data_start_ + tensor.begin + offset, out.size());
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<StoredTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : own_(std::make_unique<FileOutput>(std::move(path))),
      output_(*own_),
      tensors_(std::move(tensors)) {
  begin(metadata);
}

SafetensorsWriter::SafetensorsWriter(Output& output, std::vector<StoredTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : output_(output), tensors_(std::move(tensors)) {
  begin(metadata);
}

void SafetensorsWriter::begin(const std::map<std::string, std::string>& metadata) {
  data_bytes_ = assign_offsets(tensors_);
  std::string text = format_safetensors_header({tensors_, metadata});
  text.resize(*checked_align<std::uint64_t>(text.size(), 8), ' ');
  if (text.size() > max_safetensors_header)
    fail(fmt::format("{}: the header needs {} bytes, more than the limit of {}", output_.name(),
                     text.size(), max_safetensors_header));
  // Refuses what a reader would refuse (e.g. two equal names) before any data is written.
  parse_safetensors_header(text, data_bytes_, output_.name());
  const auto length = encode_length(text.size());
  output_.write(length);
  output_.write(std::as_bytes(std::span(text)));
  data_start_ = length.size() + text.size();
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > data_bytes_ - written_)
    fail(fmt::format("{}: {} bytes are one write too many, the tensors lack only {}",
                     output_.name(), bytes.size(), data_bytes_ - written_));
  output_.write(bytes);
  written_ += bytes.size();
}

void SafetensorsWriter::finish() {
  if (written_ != data_bytes_) {
    const auto missing = std::ranges::upper_bound(tensors_, written_, {}, &StoredTensor::end);
    fail(fmt::format("{} is incomplete: {} of {} bytes were written, up to tensor {}",
                     output_.name(), written_, data_bytes_, quote(missing->name)));
  }
  output_.finish();
}

}  // namespace sluice
