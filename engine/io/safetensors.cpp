#include "engine/io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/io/json_document.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::array<std::string_view, 3> entry_keys = {"dtype", "shape", "data_offsets"};

/// Empty if the elements or their bytes do not fit in 63 bits, or a dimension is negative. Other
/// readers multiply the dimensions as signed numbers, so this limit also holds for every partial
/// product, even if a later dimension is 0.
std::optional<std::uint64_t> bytes_of(StoredType type, std::span<const std::int64_t> shape) {
  const auto multiply = [](std::uint64_t a, std::uint64_t b) {
    const auto product = checked_multiply(a, b);
    return product && checked_narrow<std::int64_t>(*product) ? product : std::nullopt;
  };
  std::optional<std::uint64_t> elements = 1;
  for (const std::int64_t dimension : shape) {
    const auto size = checked_narrow<std::uint64_t>(dimension);
    elements = size ? multiply(*elements, *size) : std::nullopt;
    if (!elements) return std::nullopt;
  }
  return multiply(*elements, size_of(type));
}

/// Parses one header and holds the values that every message needs.
class HeaderParser {
 public:
  HeaderParser(std::uint64_t data_bytes, std::string_view what)
      : data_bytes_(data_bytes), what_(what) {}

  SafetensorsHeader parse(std::string_view text) const {
    if (!text.starts_with('{'))
      refuse("the header does not begin with '{'; this is not a safetensors file");
    const Json document = parse_json(text, fmt::format("the header of {}", what_));
    SafetensorsHeader header;
    header.tensors.reserve(document.size());
    for (const auto& [name, value] : document.items()) {
      if (name == metadata_key)
        header.metadata = metadata_from(value);
      else
        header.tensors.push_back(tensor_from(name, value));
    }
    // Sorted by the end too: an empty tensor comes before the one that starts at the same byte.
    std::ranges::stable_sort(header.tensors, {},
                             [](const auto& t) { return std::pair(t.begin, t.end); });
    check_coverage(header.tensors);
    return header;
  }

 private:
  [[noreturn]] void refuse(std::string_view reason,
                           SourceLine where = SourceLine::current()) const {
    fail(fmt::format("{}: {}", what_, reason), ErrorKind::usage, where);
  }

  [[noreturn]] void refuse_tensor(std::string_view name, std::string_view reason,
                                  SourceLine where = SourceLine::current()) const {
    refuse(fmt::format("tensor {} {}", quote(name), reason), where);
  }

  std::map<std::string, std::string> metadata_from(const Json& object) const {
    if (object.is_null()) return {};  // as the reference implementation reads it
    if (!object.is_object())
      refuse(fmt::format("{} is {}, but must be an object", metadata_key, shown(object)));
    std::map<std::string, std::string> metadata;
    for (const auto& [key, value] : object.items()) {
      if (!value.is_string())
        refuse(fmt::format("{} has the value {} for {}, but may hold only strings", metadata_key,
                           shown(value), quote(key)));
      metadata.emplace(key, value.get<std::string>());
    }
    return metadata;
  }

  StoredTensor tensor_from(const std::string& name, const Json& entry) const {
    check_keys(name, entry);
    StoredTensor tensor;
    tensor.name = name;
    tensor.type = type_from(name, entry["dtype"]);
    tensor.shape = shape_from(name, entry["shape"]);
    std::tie(tensor.begin, tensor.end) = offsets_from(name, entry["data_offsets"]);

    const auto bytes = bytes_of(tensor.type, tensor.shape);
    if (!bytes)
      refuse_tensor(name, fmt::format("has the shape {}, whose size does not fit in 63 bits",
                                      shown(entry["shape"])));
    if (*bytes != tensor.byte_size())
      refuse_tensor(name, fmt::format("has {} bytes by its type {} and shape {}, but its offsets "
                                      "{} span {}",
                                      *bytes, name_of(tensor.type), shown(entry["shape"]),
                                      shown(entry["data_offsets"]), tensor.byte_size()));
    return tensor;
  }

  void check_keys(const std::string& name, const Json& entry) const {
    if (!entry.is_object())
      refuse(fmt::format("the entry of tensor {} is {}, but must be an object", quote(name),
                         shown(entry)));
    for (const std::string_view key : entry_keys)
      if (!entry.contains(key)) refuse_tensor(name, fmt::format("has no {}", key));
    for (const auto& [key, value] : entry.items())
      if (std::ranges::find(entry_keys, key) == entry_keys.end())
        refuse_tensor(name, fmt::format("has the unknown key {}", quote(key)));
  }

  StoredType type_from(const std::string& name, const Json& value) const {
    if (value.is_string())
      for (const StoredType type : all_stored_types)
        if (name_of(type) == value.get_ref<const std::string&>()) return type;
    for (const std::string_view narrow : {"F8_", "F6_", "F4"})
      if (value.is_string() && value.get_ref<const std::string&>().starts_with(narrow))
        refuse_tensor(name, fmt::format("is quantised, to {}, which is not supported; take the "
                                        "model in BF16, F16 or F32",
                                        shown(value)));
    refuse_tensor(name, fmt::format("has the unknown dtype {}", shown(value)));
  }

  std::vector<std::int64_t> shape_from(const std::string& name, const Json& value) const {
    if (!value.is_array())
      refuse_tensor(name, fmt::format("has the shape {}, which is not an array", shown(value)));
    std::vector<std::int64_t> shape;
    for (const Json& dimension : value) {
      const auto size = checked_narrow<std::int64_t>(integer_from(name, "dimension", dimension));
      if (!size)
        refuse_tensor(
            name, fmt::format("has the dimension {}, which exceeds 2^63 - 1", shown(dimension)));
      shape.push_back(*size);
    }
    return shape;
  }

  std::pair<std::uint64_t, std::uint64_t> offsets_from(const std::string& name,
                                                       const Json& value) const {
    if (!value.is_array() || value.size() != 2)
      refuse_tensor(
          name, fmt::format("has the data_offsets {}, which are not two numbers", shown(value)));
    const std::uint64_t begin = integer_from(name, "offset", value[0]);
    const std::uint64_t end = integer_from(name, "offset", value[1]);
    if (begin > end)
      refuse_tensor(name, fmt::format("ends before it begins: data_offsets {}", shown(value)));
    if (end > data_bytes_)
      refuse_tensor(name, fmt::format("ends at byte {} of the data, but the file has only {}; is "
                                      "it truncated?",
                                      end, data_bytes_));
    return {begin, end};
  }

  std::uint64_t integer_from(const std::string& name, std::string_view role,
                             const Json& value) const {
    // is_number() would accept "-0", 1.0, 1e3 and integers of more than 64 bits, refused here.
    if (!value.is_number_unsigned())
      refuse_tensor(name, fmt::format("has the {} {}, which is not an integer from 0 to 2^64 - 1",
                                      role, shown(value)));
    return value.get<std::uint64_t>();
  }

  void check_coverage(std::span<const StoredTensor> tensors) const {
    std::uint64_t covered = 0;
    for (const StoredTensor& tensor : tensors) {
      if (tensor.begin < covered)
        refuse_tensor(tensor.name,
                      fmt::format("begins at byte {} of the data, inside the tensor before "
                                  "it, which ends at {}",
                                  tensor.begin, covered));
      if (tensor.begin > covered)
        refuse(fmt::format("bytes {} to {} of the data, before tensor {}, belong to no tensor",
                           covered, tensor.begin, quote(tensor.name)));
      covered = tensor.end;
    }
    if (covered != data_bytes_)
      refuse(fmt::format("the tensors end at byte {} of the data, but the file goes on to {}",
                         covered, data_bytes_));
  }

  std::uint64_t data_bytes_;
  std::string_view what_;
};

std::string dumped(const Json& value) {
  try {
    return value.dump();
  } catch (const Json::exception&) {
    fail("the name or metadata of a tensor cannot be stored: it is not valid UTF-8");
  }
}

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

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           std::string_view what) {
  return HeaderParser(data_bytes, what).parse(text);
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  std::vector<std::string> members;
  if (!header.metadata.empty())
    members.push_back(fmt::format("\"{}\":{}", metadata_key, dumped(header.metadata)));
  for (const StoredTensor& tensor : header.tensors)
    members.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  dumped(tensor.name), name_of(tensor.type),
                                  fmt::join(tensor.shape, ","), tensor.begin, tensor.end));
  return fmt::format("{{{}}}", fmt::join(members, ","));
}

std::uint64_t assign_offsets(std::vector<StoredTensor>& tensors) {
  std::uint64_t position = 0;
  for (StoredTensor& tensor : tensors) {
    const auto bytes = bytes_of(tensor.type, tensor.shape);
    const auto end = bytes ? checked_add(position, *bytes) : std::nullopt;
    if (!end)
      fail(
          fmt::format("tensor {} cannot be stored with the shape [{}]: its size is negative or "
                      "does not fit in 63 bits",
                      quote(tensor.name), fmt::join(tensor.shape, ", ")));
    tensor.begin = std::exchange(position, *end);
    tensor.end = *end;
  }
  return position;
}

std::vector<std::byte> safetensors_start(std::vector<StoredTensor>& tensors,
                                         const std::map<std::string, std::string>& metadata,
                                         std::string_view what) {
  const std::uint64_t data_bytes = assign_offsets(tensors);
  std::string text = format_safetensors_header({tensors, metadata});
  text.resize(*checked_align<std::uint64_t>(text.size(), 8), ' ');
  if (text.size() > max_safetensors_header)
    fail(fmt::format("{}: the header needs {} bytes, more than the limit of {}", what, text.size(),
                     max_safetensors_header));
  // Refuses what a reader would refuse (e.g. two equal names) before any data is written.
  parse_safetensors_header(text, data_bytes, what);
  std::vector<std::byte> start(length_bytes + text.size());
  std::ranges::copy(encode_length(text.size()), start.begin());
  std::ranges::copy(std::as_bytes(std::span(text)), start.begin() + length_bytes);
  return start;
}

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
  const auto start = safetensors_start(tensors_, metadata, output_.name());
  output_.write(start);
  data_bytes_ = tensors_.empty() ? 0 : tensors_.back().end;
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
