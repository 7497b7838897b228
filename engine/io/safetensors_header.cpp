#include "engine/io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
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

}  // namespace sluice
