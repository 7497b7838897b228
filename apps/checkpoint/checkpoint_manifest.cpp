#include "apps/checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/io/file.h"
#include "engine/io/json_document.h"
#include "engine/io/safetensors.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int version = 2;
/// A section takes some 20 bytes, so this suffices for 50 TB.
constexpr std::uint64_t max_bytes = std::uint64_t{256} << 20;
constexpr std::int64_t largest = std::int64_t{1} << 62, largest_sum = 0xFFFFFFFF;

std::uint32_t crc32_of_text(const std::string& text) {
  return crc32_of(std::as_bytes(std::span(text)));
}

/// Turns usage errors into damage: the readers used here also read users' files and report a fault
/// in those as wrong use, but a fault in a checkpoint's file means that the file is damaged.
template <class Body>
auto reading(const fs::path& file, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    damaged(file, error.what());
  }
}

SectionSums sums_of(const Json& file, const fs::path& path) {
  constexpr auto section = static_cast<std::int64_t>(SectionSums::section_bytes);
  whole_number(file.at("section_bytes"), section, section, path);
  const std::int64_t bytes = whole_number(file.at("bytes"), 0, largest, path);
  std::vector<std::uint32_t> sums;
  for (const Json& sum : file.at("crc32").get_ref<const Json::array_t&>())
    sums.push_back(static_cast<std::uint32_t>(whole_number(sum, 0, largest_sum, path)));
  if (sums.size() != static_cast<std::size_t>((bytes + section - 1) / section))
    damaged(path, "a file has another number of checksums than of sections");
  return {static_cast<std::uint64_t>(bytes), std::move(sums)};
}

/// Returns a description of what bytes [begin, end) of a safetensors file hold.
std::string contents(const fs::path& path, std::uint64_t begin, std::uint64_t end) {
  try {
    const SafetensorsReader reader(path);
    std::string first, last;
    for (const StoredTensor& tensor : reader.tensors()) {
      if (reader.data_start() + tensor.end <= begin || reader.data_start() + tensor.begin >= end)
        continue;
      if (first.empty()) first = tensor.name;
      last = tensor.name;
    }
    const std::string tensors =
        first == last ? excerpt(first) : excerpt(first) + " to " + excerpt(last);
    return begin < reader.data_start() ? "its header and " + tensors : tensors;
  } catch (const Error&) {
    return "its header too";
  }
}

void verify_file(const fs::path& path, const SectionSums& expected, std::size_t share,
                 std::size_t shares) {
  const File file = reading(path, [&] { return File::open(path); });
  if (file.size() != expected.bytes())
    damaged(path, fmt::format("{} bytes, {} expected", file.size(), expected.bytes()));
  const std::size_t sections = expected.sums().size();
  std::vector<std::byte> buffer(SectionSums::section_bytes);
  for (std::size_t i = sections * share / shares; i < sections * (share + 1) / shares; ++i) {
    const std::uint64_t begin = i * SectionSums::section_bytes;
    const std::uint64_t end = std::min(begin + SectionSums::section_bytes, expected.bytes());
    const auto section = std::span(buffer).first(end - begin);
    file.read_at(begin, section);
    file.drop_cache(begin, section.size());
    if (crc32_of(section) != expected.sums()[i])
      damaged(path, fmt::format("bytes {} to {} are not those that were written ({})", begin,
                                end - 1, contents(path, begin, end)));
  }
}

}  // namespace

bool Lineage::holds(std::int64_t save) const {
  return std::ranges::any_of(stretches_, [&](const Stretch& stretch) {
    return stretch.first <= save && save <= stretch.last;
  });
}

bool Lineage::named(std::int64_t save) const {
  return std::ranges::find(named_, save) != named_.end();
}

void Lineage::name(std::int64_t save) {
  if (holds(save) && !named(save)) named_.push_back(save);
}

void Lineage::add(std::int64_t save) {
  if (stretches_.empty() || stretches_.back().last + 1 != save)
    stretches_.push_back({save, save});
  else
    stretches_.back().last = save;
}

nlohmann::json Lineage::to_json() const {
  nlohmann::json saves = nlohmann::json::array();
  for (const Stretch& stretch : stretches_)
    saves.push_back({stretch.first, stretch.last});
  return {{"saves", saves}, {"named", named_}};
}

Lineage Lineage::from_json(const nlohmann::json& json) {
  constexpr std::int64_t most = std::int64_t{1} << 62;
  // Rejects numbers beyond 63 bits, which would become negative, and fractions, which would be cut.
  const auto number = [](const nlohmann::json& value) {
    if (!value.is_number_integer()) throw std::out_of_range("a save is not a whole number");
    return value.get<std::int64_t>();
  };
  Lineage lineage;
  std::int64_t before = 0;
  for (const auto& pair : json.at("saves").get_ref<const nlohmann::json::array_t&>()) {
    if (pair.size() != 2) throw std::out_of_range("a stretch is not two saves");
    const Stretch stretch{number(pair.at(0)), number(pair.at(1))};
    if (stretch.first <= before || stretch.last < stretch.first || stretch.last > most)
      throw std::out_of_range("the numbers of saves do not increase");
    before = stretch.last;
    lineage.stretches_.push_back(stretch);
  }
  for (const auto& save : json.at("named").get_ref<const nlohmann::json::array_t&>())
    if (!lineage.holds(lineage.named_.emplace_back(number(save))))
      throw std::out_of_range("a save that --resume has named is none of its saves");
  return lineage;
}

void damaged(const fs::path& file, const std::string& why) {
  fail(fmt::format("{} is damaged: {}; resume from an older checkpoint with --resume PATH",
                   file.string(), why));
}

std::int64_t whole_number(const Json& value, std::int64_t least, std::int64_t most,
                          const fs::path& file) {
  // Numbers beyond 64 bits are parsed as floats; unsigned ones beyond 63 would become negative.
  const bool whole =
      value.is_number_integer() && (!value.is_number_unsigned() ||
                                    value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most));
  if (!whole || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most)
    damaged(file, fmt::format("a number is not a whole one from {} to {}", least, most));
  return value.get<std::int64_t>();
}

std::string to_text(const CheckpointManifest& manifest) {
  Json json = *manifest.fields;
  json["version"] = version;
  json["step"] = manifest.step;
  json["lineage"] = manifest.lineage.to_json();
  json["keep"] = manifest.keep;
  for (const auto& [name, sums] : manifest.files)
    json["files"][name] = {{"bytes", sums.bytes()},
                           {"section_bytes", SectionSums::section_bytes},
                           {"crc32", sums.sums()}};
  json["crc32"] = crc32_of_text(json.dump());
  std::string text = json.dump(2);
  check(text.size() <= max_bytes, "state.json of a checkpoint is longer than can be read again");
  return text;
}

CheckpointManifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "state.json";
  Json json = reading(path, [&] { return read_json_file(path, max_bytes); });
  CheckpointManifest manifest;
  try {
    const std::int64_t expected = whole_number(json.at("crc32"), 0, largest_sum, path);
    json.erase("crc32");
    if (crc32_of_text(json.dump()) != expected) damaged(path, "its checksum differs");
    const std::int64_t written = whole_number(json.at("version"), 0, largest, path);
    if (written != version)
      fail(
          fmt::format("{} has version {}, this program reads {}", path.string(), written, version));
    manifest.step = whole_number(json.at("step"), 0, largest, path);
    const Json& files = json.at("files");
    for (const char* name : {weights_file, optimizer_file})
      manifest.files[name] = sums_of(files.at(name), path);
    if (files.size() != manifest.files.size()) damaged(path, "it lists a file that is none of its");
    // Older versions of the program did not write these fields.
    if (json.contains("lineage")) manifest.lineage = Lineage::from_json(json.at("lineage"));
    if (json.contains("keep")) manifest.keep = whole_number(json.at("keep"), 0, largest, path);
  } catch (const Json::exception&) {
    damaged(path, "a field is missing or of the wrong type");
  } catch (const std::out_of_range& error) {
    damaged(path, fmt::format("\"lineage\" is not one: {}", error.what()));
  }
  manifest.fields = std::make_shared<const Json>(std::move(json));
  return manifest;
}

void verify_files(const fs::path& checkpoint, const CheckpointManifest& manifest, std::size_t share,
                  std::size_t shares) {
  for (const auto& [name, sums] : manifest.files)
    verify_file(checkpoint / name, sums, share, shares);
}

std::string to_flags(const RecordedChoice& choice) {
  std::string flags = fmt::format("--micro-batch {} --state-layout {} --gradients {}",
                                  choice.micro_batch, name_of(choice.layout), choice.gradients());
  if (choice.head_chunk != RecordedChoice().head_chunk)
    flags += fmt::format(" --head-chunk {}", choice.head_chunk);
  return flags;
}

Json to_json(const RecordedChoice& choice) {
  return {{"micro_batch", choice.micro_batch},
          {"state_layout", name_of(choice.layout)},
          {"gradients", choice.gradients()},
          {"head_chunk", choice.head_chunk}};
}

std::optional<RecordedChoice> recorded_choice(const fs::path& checkpoint,
                                              const CheckpointManifest& manifest) {
  const auto found = manifest.fields->find("memory");
  if (found == manifest.fields->end()) return {};
  const fs::path file = checkpoint / "state.json";
  constexpr std::int64_t max_sequences = std::int64_t{1} << 32, max_tokens = std::int64_t{1} << 30;
  try {
    const auto layout = layout_named(found->at("state_layout").get<std::string>());
    const auto gradients = found->at("gradients").get<std::string>();
    if (!layout || (gradients != "bf16" && gradients != "fp32"))
      damaged(file, "it tells of a use of memory that there is not");
    RecordedChoice choice{
        .micro_batch = whole_number(found->at("micro_batch"), 1, max_sequences, file),
        .layout = *layout,
        .narrow_gradients = gradients == "bf16"};
    if (const auto chunk = found->find("head_chunk"); chunk != found->end())
      choice.head_chunk = whole_number(*chunk, 1, max_tokens, file);
    return choice;
  } catch (const Json::exception&) {
    damaged(file, "a field is missing or of the wrong type");
  }
}

}  // namespace sluice
