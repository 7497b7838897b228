#include "models/decoder/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "engine/io/file.h"
#include "engine/io/json_document.h"
#include "engine/io/safetensors.h"
#include "engine/io/section_sums.h"
#include "engine/io/stored_tensor.h"
#include "models/decoder/decoder.h"
#include "models/decoder/names.h"
#include "models/decoder/quantized_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t quantized_at_a_time = 1 << 20;  // elements

/// A shard lies beside its index, so a name that leads elsewhere is an attack or a mistake. The
/// name must also be one that a file can have and that a message can show.
bool is_plain_name(const std::string& name) {
  constexpr std::size_t longest = 255;  // in bytes, on most file systems
  const auto is_control = [](unsigned char byte) { return byte < ' ' || byte == 0x7F; };
  return !name.empty() && name != "." && name != ".." && name.size() <= longest &&
         name.find('/') == name.npos && std::ranges::none_of(name, is_control);
}

/// Returns the weight files of a folder: one, or the shards of an index. A file stands for itself.
std::vector<fs::path> weight_files(const fs::path& folder) {
  if (fs::is_regular_file(folder)) return {folder};
  const fs::path single = folder / "model.safetensors";
  if (fs::exists(single)) return {single};
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(index) && (fs::exists(folder / "pytorch_model.bin") ||
                             fs::exists(folder / "pytorch_model.bin.index.json")))
    fail(fmt::format("{0} has its weights in pytorch_model.bin, a program's memory that is not "
                     "read here; convert it once: pip install torch safetensors numpy; "
                     "scripts/bin_to_safetensors {0}",
                     folder.string()),
         ErrorKind::usage);
  if (!fs::exists(index))
    fail(fmt::format("{} has neither model.safetensors nor model.safetensors.index.json; put the "
                     "weights there that belong to its config.json",
                     folder.string()),
         ErrorKind::usage);
  const nlohmann::json json = read_json_file(index, std::uint64_t{1} << 26);
  std::set<std::string> names;
  if (!json.is_object() || !json.contains("weight_map") || !json.at("weight_map").is_object())
    fail(fmt::format("{}: \"weight_map\" is missing", index.string()), ErrorKind::usage);
  for (const auto& [tensor, file] : json.at("weight_map").items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>()))
      fail(fmt::format("{}: the file of tensor {} is {}; it must be a plain file name",
                       index.string(), quote(tensor), shown(file)),
           ErrorKind::usage);
    names.insert(file.get<std::string>());
  }
  std::vector<fs::path> files;
  files.reserve(names.size());
  for (const auto& name : names)
    files.push_back(folder / name);
  return files;
}

struct Found {
  const SafetensorsReader* reader;
  const StoredTensor* tensor;
};

/// Returns the name as the family's parameters have it, with or without the prefix in the file.
std::string plain_name(const std::string& stored, const DecoderNames& names) {
  const bool prefixed = stored.starts_with(names.prefix);
  if (!names.table.starts_with(names.prefix))
    return prefixed ? stored.substr(names.prefix.size()) : stored;
  return prefixed || stored == names.head || stored == names.head_bias
             ? stored
             : std::string(names.prefix) + stored;
}

/// Recognises constants of old files, which are no weights: the masks of GPT-2 and GPT-J
/// (h.N.attn.bias, h.N.attn.masked_bias) and of GPT-NeoX, and the frequencies of rotary positions.
bool is_constant(std::string_view name, const StoredTensor& tensor, const DecoderNames& names) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  if (tensor.shape.size() == 1 || !name.starts_with(names.blocks)) return false;
  name.remove_prefix(
      std::min(name.find_first_not_of("0123456789", names.blocks.size()), name.size()));
  return name == ".attn.bias" || name == ".attn.masked_bias" || name == ".attention.bias" ||
         name == ".attention.masked_bias";
}

std::map<std::string, Found> collect(const std::vector<SafetensorsReader>& readers,
                                     const DecoderNames& names) {
  std::map<std::string, Found> found;
  for (const auto& reader : readers) {
    for (const auto& tensor : reader.tensors()) {
      const std::string name = plain_name(tensor.name, names);
      if (is_constant(name, tensor, names)) continue;
      if (!found.emplace(name, Found{&reader, &tensor}).second)
        fail(
            fmt::format("{}: tensor {} is there twice", reader.path().string(), quote(tensor.name)),
            ErrorKind::usage);
    }
  }
  return found;
}

/// Requires that the head's tensor equals the tied embedding; otherwise it is another model.
void require_tied(const Found& head, const Found& table, const DecoderConfig& config) {
  std::vector<std::byte> a(1 << 20);
  std::vector<std::byte> b(1 << 20);
  bool equal = head.tensor->type == table.tensor->type && head.tensor->shape == table.tensor->shape;
  const std::uint64_t bytes = head.tensor->byte_size();
  for (std::uint64_t at = 0; equal && at < bytes; at += a.size()) {
    const std::size_t count = std::min<std::uint64_t>(a.size(), bytes - at);
    head.reader->read(*head.tensor, at, std::span(a).first(count));
    table.reader->read(*table.tensor, at, std::span(b).first(count));
    equal = std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin());
  }
  if (!equal)
    fail(fmt::format("{}: {} differs from {}; {}", head.reader->path().string(), head.tensor->name,
                     table.tensor->name,
                     config.family == Family::gpt2
                         ? "only tied embeddings are supported"
                         : "its config.json says that they are tied (\"tie_word_embeddings\")"),
         ErrorKind::usage);
}

/// Accepts a longer position table: a shorter context uses its first rows.
bool has_shape(const StoredTensor& tensor, const std::string& name, const Shape& whole) {
  Shape stored = tensor.shape;
  if (name == "wpe.weight" && stored.size() == 2 && stored[0] > whole[0]) stored[0] = whole[0];
  return stored == whole;
}

/// The weight files of a folder, with everything checked except the values.
class WeightFiles {
 public:
  WeightFiles(const fs::path& folder, const DecoderConfig& config) {
    for (const auto& file : weight_files(folder)) {
      readers_.emplace_back(file);
      refuse_quantized(readers_.back());
    }
    const DecoderNames& names = names_of(config.family);
    found_ = collect(readers_, names);
    std::set<std::string, std::less<>> known{std::string(names.head)};
    for (const auto& slot : SpaceLayout(Decoder(config.without_adapters()).parameters(), {}).slots)
      for (const StoredSlice& slice : slot.stored()) {
        known.insert(slice.name);
        const auto entry = found_.find(slice.name);
        if (entry == found_.end())
          fail(fmt::format("{}: tensor {} is missing (the configuration has {} layers)",
                           folder.string(), quote(slice.name), config.n_layer),
               ErrorKind::usage);
        const Found& found = entry->second;
        if (!has_shape(*found.tensor, slice.name, slice.shape))
          fail(fmt::format("{}: tensor {} has shape {}, the configuration implies {}",
                           found.reader->path().string(), quote(found.tensor->name),
                           to_string(found.tensor->shape), to_string(slice.shape)),
               ErrorKind::usage);
      }
    for (const auto& [name, entry] : found_)
      if (!known.contains(name))
        fail(fmt::format("{}: tensor {} does not belong to a {} of {} layers",
                         entry.reader->path().string(), quote(entry.tensor->name), names.title,
                         config.n_layer),
             ErrorKind::usage);
  }

  const Found& at(const std::string& name) const { return found_.at(name); }
  const Found* find(const std::string& name) const {
    const auto entry = found_.find(name);
    return entry == found_.end() ? nullptr : &entry->second;
  }

 private:
  std::vector<SafetensorsReader> readers_;
  std::map<std::string, Found> found_;
};

}  // namespace

void check_weights(const fs::path& folder, const DecoderConfig& config) {
  WeightFiles(folder, config);
}

std::uint32_t weights_checksum(const fs::path& folder) {
  std::uint32_t sum = 0;
  std::vector<std::byte> piece;
  for (const fs::path& path : weight_files(folder)) {
    const File file = File::open(path);
    const std::uint64_t bytes = file.size();
    constexpr std::uint64_t most = std::uint64_t{4} << 20;
    for (std::uint64_t at = 0; at < bytes; at += most) {
      piece.resize(static_cast<std::size_t>(std::min(most, bytes - at)));
      file.read_at(at, piece);
      sum = crc32_of(piece, sum);
    }
  }
  return sum;
}

bool is_weights_file(std::string_view name) {
  constexpr std::string_view start = "model-", end = ".safetensors";
  if (name == "model.safetensors" || name == "model.safetensors.index.json") return true;
  if (!name.starts_with(start) || !name.ends_with(end)) return false;
  name = name.substr(start.size(), name.size() - start.size() - end.size());
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const std::size_t of = name.find("-of-");
  return of != std::string_view::npos && is_number(name.substr(0, of)) &&
         is_number(name.substr(of + 4));
}

void read_slice(const SafetensorsReader& reader, const StoredTensor& tensor, ParameterSpace& space,
                const ParameterSpace::Slot& slot, const StoredSlice& slice) {
  const DType dtype = space.weight_dtype(), computes = space.working().dtype();
  const std::string what = fmt::format("{}: tensor {}", reader.path().string(), quote(tensor.name));
  read_floats(reader, tensor, 0, element_count(slice.shape), dtype,
              [&](std::int64_t first, std::span<std::byte> values) {
                if (computes != dtype)
                  require_held(values, dtype, stored_type(computes), first, what);
                space.write_shard(slot, slice.first + first, values);
              });
}

void load_weights(const fs::path& folder, const DecoderConfig& config, ParameterSpace& space) {
  const WeightFiles files(folder, config);
  for (const auto& slot : space.slots())
    for (const StoredSlice& slice : slot.stored()) {
      const Found& found = files.at(slice.name);
      read_slice(*found.reader, *found.tensor, space, slot, slice);
    }
  if (!config.tied) return;
  const DecoderNames& names = names_of(config.family);
  if (const Found* const head = files.find(std::string(names.head)))
    require_tied(*head, files.at(std::string(names.table)), config);
}

void load_weights(const fs::path& folder, const DecoderConfig& config, QuantizedSpace& space) {
  const WeightFiles files(folder, config);
  for (const auto& slot : space.slots())
    for (const StoredSlice& slice : slot.stored()) {
      const Found& found = files.at(slice.name);
      const std::int64_t columns = slice.shape[1];
      const std::int64_t rows = std::max<std::int64_t>(1, quantized_at_a_time / columns);
      for (std::int64_t row = 0; row < slice.shape[0]; row += rows) {
        const std::int64_t count = std::min(rows, slice.shape[0] - row) * columns;
        std::vector<std::byte> values;
        read_floats(*found.reader, *found.tensor, row * columns, count, DType::f32,
                    [&](std::int64_t, std::span<std::byte> part) {
                      values.insert(values.end(), part.begin(), part.end());
                    });
        if (!space.write_rows(slot, slice.first + row * columns, values))
          fail(fmt::format(
                   "{}: tensor {} has values above {:.3g}, too large for 8-bit integers with "
                   "a scale in f16",
                   found.reader->path().string(), quote(found.tensor->name),
                   QuantizedSpace::largest_value()),
               ErrorKind::usage);
      }
    }
}

SafetensorsHeader weights_header(const SpaceLayout& layout, StoredType type) {
  // Hugging Face refuses a file that does not name the framework whose layout it has.
  SafetensorsHeader header{.tensors = {}, .metadata = {{"format", "pt"}}};
  for (const auto& slot : layout.slots)
    for (StoredSlice& slice : slot.stored())
      header.tensors.push_back({.name = std::move(slice.name), .type = type, .shape = slice.shape});
  return header;
}

void save_weights(const fs::path& file, const ParameterSpace& space, StoredType type,
                  const std::string& writer_name) {
  SafetensorsHeader header = weights_header(space.layout(), type);
  if (!writer_name.empty()) header.metadata[weights_writer] = writer_name;
  SafetensorsWriter writer(file, std::move(header.tensors), header.metadata);
  const DType dtype = space.weight_dtype();
  for (const auto& slot : space.slots())
    for (const StoredSlice& slice : slot.stored())
      write_floats(
          writer, element_count(slice.shape), dtype,
          [&](std::int64_t first, std::span<std::byte> values) {
            space.read_weights(slot.offset + slice.first + first, values);
            require_held(values, dtype, type, first, fmt::format("tensor {}", quote(slice.name)));
          },
          type);
  writer.finish();
}

}  // namespace sluice
