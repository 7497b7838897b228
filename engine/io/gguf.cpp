#include "engine/io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/io/json_document.h"
#include "engine/io/utf8.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/error.h"
#include "kernels/base/half.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Limits of what comes before the data, so that a hostile file costs little memory.
constexpr std::uint64_t max_header_bytes = 200'000'000;
constexpr std::uint64_t max_values = 4'000'000;
constexpr std::uint64_t max_tensors = 100'000;
constexpr std::uint32_t max_dimensions = 4;

struct TypeFacts {
  std::uint32_t code;  ///< as the file has it (ggml_type)
  std::string_view name;
  std::int64_t block;         ///< elements
  std::uint64_t block_bytes;  ///< of one block
};
/// In the order of GgufType.
constexpr TypeFacts types[] = {{0, "F32", 1, 4},    {1, "F16", 1, 2},    {30, "BF16", 1, 2},
                               {2, "Q4_0", 32, 18}, {3, "Q4_1", 32, 20}, {8, "Q8_0", 32, 34}};

/// ggml's names of all its types, by their codes; "": there is no such type any more.
constexpr std::string_view ggml_names[] = {
    "F32",     "F16",   "Q4_0",   "Q4_1",  "",      "",       "Q5_0", "Q5_1",    "Q8_0",
    "Q8_1",    "Q2_K",  "Q3_K",   "Q4_K",  "Q5_K",  "Q6_K",   "Q8_K", "IQ2_XXS", "IQ2_XS",
    "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",   "I16",     "I32",
    "I64",     "F64",   "IQ1_M",  "BF16",  "",      "",       "",     "TQ1_0",   "TQ2_0",
    "",        "",      "",       "MXFP4", "NVFP4", "Q1_0"};

const TypeFacts& facts(GgufType type) {
  return types[static_cast<std::size_t>(type)];
}

[[noreturn]] void refuse(const fs::path& file, const std::string& what) {
  fail(fmt::format("{} {}", file.string(), what), ErrorKind::usage);
}

/// Reads what comes before the data, front to back.
class Header {
 public:
  explicit Header(const File& file) : file_(file), size_(std::min(file.size(), max_header_bytes)) {}

  const fs::path& path() const { return file_.path(); }
  std::uint64_t position() const { return start_ + at_; }
  /// Bytes that can still be read; a count of things that need more is a lie.
  std::uint64_t left() const { return size_ - position(); }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }

  std::string text(std::string_view what) {
    const auto length = number<std::uint64_t>();
    if (length > left())
      refuse(path(), fmt::format("ends inside {}: {} bytes are announced, {} are left", what,
                                 length, left()));
    std::string value;
    while (value.size() < length) {
      const std::size_t part = std::min<std::uint64_t>(length - value.size(), buffer_size);
      value.append(reinterpret_cast<const char*>(take(part)), part);
    }
    for (std::size_t at = 0; at < value.size();) {
      const std::size_t size = utf8_size(std::string_view(value).substr(at));
      if (size == 0) refuse(path(), fmt::format("has text that is not UTF-8 in {}", what));
      at += size;
    }
    return value;
  }

 private:
  static constexpr std::size_t buffer_size = 1 << 16;

  /// Returns the next `count` bytes, valid until the next call.
  const std::byte* take(std::size_t count) {
    if (count > left())
      refuse(path(), size_ == max_header_bytes
                         ? fmt::format("has more than {} bytes before its data", max_header_bytes)
                         : fmt::format("ends at byte {}, inside its header", size_));
    if (at_ + count > buffer_.size()) {
      start_ += at_;
      at_ = 0;
      buffer_.resize(std::min<std::uint64_t>(buffer_size, size_ - start_));
      file_.read_at(start_, buffer_);
    }
    at_ += count;
    return buffer_.data() + at_ - count;
  }

  const File& file_;
  std::uint64_t size_;
  std::uint64_t start_ = 0;  ///< of the buffer in the file
  std::size_t at_ = 0;       ///< in the buffer
  std::vector<std::byte> buffer_;
};

enum class ValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  text,
  array,
  u64,
  i64,
  f64
};

std::size_t least_size(ValueType type) {
  constexpr std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return sizes[static_cast<std::size_t>(type)];
}

ValueType value_type(Header& header, const std::string& key) {
  const auto code = header.number<std::uint32_t>();
  if (code > static_cast<std::uint32_t>(ValueType::f64))
    refuse(header.path(), fmt::format("gives {} a value of type {}, which the format does not have",
                                      quote(key), code));
  return static_cast<ValueType>(code);
}

Json number_of(Header& header, double value, const std::string& key) {
  if (!std::isfinite(value))
    refuse(header.path(), fmt::format("has {} that is not finite", quote(key)));
  return value;
}

Json value_of(Header& header, ValueType type, const std::string& key, std::uint64_t& values);

Json array_of(Header& header, const std::string& key, std::uint64_t& values) {
  const ValueType type = value_type(header, key);
  const auto count = header.number<std::uint64_t>();
  if (type == ValueType::array)
    refuse(header.path(), fmt::format("has a list of lists as {}", quote(key)));
  if (count > header.left() / least_size(type))
    refuse(header.path(), fmt::format("ends inside {}: {} values are announced, {} bytes are left",
                                      quote(key), count, header.left()));
  Json list = Json::array();
  for (std::uint64_t i = 0; i < count; ++i)
    list.push_back(value_of(header, type, key, values));
  return list;
}

Json value_of(Header& header, ValueType type, const std::string& key, std::uint64_t& values) {
  if (++values > max_values)
    refuse(header.path(), fmt::format("has more than {} values before its data", max_values));
  switch (type) {
    case ValueType::u8:
      return header.number<std::uint8_t>();
    case ValueType::i8:
      return header.number<std::int8_t>();
    case ValueType::u16:
      return header.number<std::uint16_t>();
    case ValueType::i16:
      return header.number<std::int16_t>();
    case ValueType::u32:
      return header.number<std::uint32_t>();
    case ValueType::i32:
      return header.number<std::int32_t>();
    case ValueType::u64:
      return header.number<std::uint64_t>();
    case ValueType::i64:
      return header.number<std::int64_t>();
    case ValueType::f32: {
      // The shortest decimal that is this f32, so that 1e-5 stays 1e-5.
      const auto value = header.number<float>();
      return number_of(header, std::isfinite(value) ? std::stod(fmt::format("{}", value)) : NAN,
                       key);
    }
    case ValueType::f64:
      return number_of(header, header.number<double>(), key);
    case ValueType::boolean: {
      const auto value = header.number<std::uint8_t>();
      if (value > 1)
        refuse(header.path(), fmt::format("has {} as truth value of {}", value, quote(key)));
      return value == 1;
    }
    case ValueType::text:
      return header.text(quote(key));
    case ValueType::array:
      break;
  }
  return array_of(header, key, values);
}

GgufType tensor_type(Header& header, const std::string& name) {
  const auto code = header.number<std::uint32_t>();
  for (std::size_t i = 0; i < std::size(types); ++i)
    if (types[i].code == code) return static_cast<GgufType>(i);
  const std::string_view known = code < std::size(ggml_names) ? ggml_names[code] : "";
  refuse(header.path(),
         fmt::format("stores tensor {} as {}; only F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are "
                     "supported, so take the model's file in one of them",
                     quote(name), known.empty() ? fmt::format("ggml's type {}", code) : known));
}

std::uint64_t bytes_of(const GgufTensor& tensor) {
  const auto elements = static_cast<std::uint64_t>(element_count(tensor.shape));
  return elements / static_cast<std::uint64_t>(facts(tensor.type).block) *
         facts(tensor.type).block_bytes;
}

GgufTensor read_tensor(Header& header) {
  GgufTensor tensor{.name = header.text("the name of a tensor"), .type = {}, .shape = {}};
  const auto dimensions = header.number<std::uint32_t>();
  if (dimensions < 1 || dimensions > max_dimensions)
    refuse(header.path(), fmt::format("gives tensor {} {} dimensions; from 1 to {} are possible",
                                      quote(tensor.name), dimensions, max_dimensions));
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto size = header.number<std::uint64_t>();
    const auto product = checked_multiply(elements, size);
    constexpr std::uint64_t most = std::uint64_t{1} << 48;
    if (size == 0 || !product || *product > most)
      refuse(header.path(),
             fmt::format("gives tensor {} a dimension of {}", quote(tensor.name), size));
    elements = *product;
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  tensor.type = tensor_type(header, tensor.name);
  tensor.offset = header.number<std::uint64_t>();
  if (tensor.shape.back() % facts(tensor.type).block != 0)
    refuse(header.path(),
           fmt::format("stores tensor {} of shape {} as {}, in blocks of {}", quote(tensor.name),
                       to_string(tensor.shape), facts(tensor.type).name, facts(tensor.type).block));
  return tensor;
}

/// Returns the alignment of the data, which a key may give.
std::uint64_t alignment_of(const fs::path& path, const Json& metadata) {
  const auto key = metadata.find("general.alignment");
  if (key == metadata.end()) return 32;
  if (!key->is_number_unsigned() || !std::has_single_bit(key->get<std::uint64_t>()) ||
      key->get<std::uint64_t>() > max_header_bytes)
    refuse(path,
           fmt::format("has {} as \"general.alignment\"; it must be a power of two", shown(*key)));
  return key->get<std::uint64_t>();
}

float half_at(const std::byte* bytes) {
  Half half;
  std::memcpy(&half.bits, bytes, sizeof half.bits);
  return static_cast<float>(half);
}

/// Expands a block of 32 elements.
void expand(GgufType type, const std::byte* block, float* out) {
  const float scale = half_at(block);
  if (type == GgufType::Q8_0) {
    for (int i = 0; i < 32; ++i)
      out[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
    return;
  }
  // The low bits of the bytes are the first 16 elements, the high bits the others.
  const bool has_minimum = type == GgufType::Q4_1;
  const float least = has_minimum ? half_at(block + 2) : -8 * scale;
  const std::byte* const bytes = block + (has_minimum ? 4 : 2);
  for (int i = 0; i < 16; ++i) {
    const auto both = std::to_integer<unsigned>(bytes[i]);
    out[i] = static_cast<float>(both & 15u) * scale + least;
    out[i + 16] = static_cast<float>(both >> 4) * scale + least;
  }
}

}  // namespace

GgufReader::GgufReader(fs::path path)
    : file_(File::open(std::move(path))), metadata_(std::make_unique<Json>(Json::object())) {
  Header header(file_);
  if (file_.size() < 24 || header.number<std::uint32_t>() != 0x46554747)  // "GGUF"
    refuse(file_.path(), "is no GGUF file: it does not begin with \"GGUF\"");
  const auto version = header.number<std::uint32_t>();
  if (version != 2 && version != 3)
    refuse(file_.path(),
           fmt::format("is of version {} of GGUF, or big-endian; only 2 and 3, little-endian, are "
                       "supported",
                       version));
  const auto tensors = header.number<std::uint64_t>(), keys = header.number<std::uint64_t>();
  if (tensors > max_tensors)
    refuse(file_.path(),
           fmt::format("announces {} tensors; {} at most are read", tensors, max_tensors));
  std::uint64_t values = 0;
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string key = header.text("the name of a key");
    Json value = value_of(header, value_type(header, key), key, values);
    if (!metadata_->emplace(key, std::move(value)).second)
      refuse(file_.path(), fmt::format("has the key {} twice", quote(key)));
  }
  for (std::uint64_t i = 0; i < tensors; ++i) {
    tensors_.push_back(read_tensor(header));
    if (!index_.emplace(tensors_.back().name, i).second)
      refuse(file_.path(), fmt::format("has the tensor {} twice", quote(tensors_.back().name)));
  }
  const std::uint64_t alignment = alignment_of(file_.path(), *metadata_);
  const std::uint64_t data = *checked_align(header.position(), alignment), end = file_.size();
  for (GgufTensor& tensor : tensors_) {
    const auto start = checked_add(data, tensor.offset);
    if (tensor.offset % alignment != 0 || !start || *start > end || bytes_of(tensor) > end - *start)
      refuse(file_.path(),
             fmt::format("says that the {} bytes of tensor {} are at {} of its data, but the data "
                         "has {} bytes, at multiples of {}; was it cut short?",
                         bytes_of(tensor), quote(tensor.name), tensor.offset,
                         end > data ? end - data : 0, alignment));
    tensor.offset = *start;
  }
}

GgufReader::~GgufReader() = default;

const GgufTensor* GgufReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void GgufReader::read(const GgufTensor& tensor, std::int64_t first, std::span<float> out) const {
  const TypeFacts& type = facts(tensor.type);
  const auto count = static_cast<std::int64_t>(out.size());
  check(first % type.block == 0 && count % type.block == 0, "a GGUF tensor is read by blocks");
  std::vector<std::byte> stored(static_cast<std::uint64_t>(count / type.block) * type.block_bytes);
  file_.read_at(tensor.offset + static_cast<std::uint64_t>(first / type.block) * type.block_bytes,
                stored);
  const std::byte* at = stored.data();
  for (std::int64_t i = 0; i < count; i += type.block, at += type.block_bytes) {
    float* const to = out.data() + i;
    if (type.block > 1) {
      expand(tensor.type, at, to);
    } else if (tensor.type == GgufType::F32) {
      std::memcpy(to, at, sizeof *to);
    } else if (tensor.type == GgufType::F16) {
      *to = half_at(at);
    } else {
      BFloat16 value;
      std::memcpy(&value.bits, at, sizeof value.bits);
      *to = static_cast<float>(value);
    }
  }
}

std::int64_t block_size(GgufType type) {
  return facts(type).block;
}

bool is_gguf_name(const fs::path& path) {
  return path.extension() == ".gguf" || path.extension() == ".GGUF";
}

}  // namespace sluice
