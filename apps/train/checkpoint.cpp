#include "apps/train/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "engine/io/safetensors.h"
#include "kernels/base/error.h"
#include "models/gpt2/weights.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int version = 1;

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}

bool is_checkpoint_name(std::string_view name) {
  return name.starts_with("step-") && name.size() >= step_name(0).size() &&
         name.find_first_not_of("0123456789", 5) == std::string_view::npos;
}

std::string state_name(std::string_view field, std::string_view parameter) {
  return fmt::format("{}.{}", field, parameter);
}

/// Calls body(slot, place of the field, field) for all that the optimizer carries.
template <class Body>
void for_each_field(const ParameterSpace& space, const Optimizer& optimizer, Body&& body) {
  for (const auto& slot : space.slots()) {
    const auto fields = optimizer.fields(slot);
    for (std::size_t i = 0; i < fields.size(); ++i)
      body(slot, i, fields[i]);
  }
}

/// Calls body(first element, bytes of `buffer`) until `count` elements are covered.
template <class Body>
void in_pieces(std::int64_t count, DType dtype, std::vector<std::byte>& buffer, Body&& body) {
  constexpr std::int64_t piece = 1 << 20;
  for (std::int64_t first = 0; first < count; first += piece) {
    buffer.resize(static_cast<std::size_t>(std::min(piece, count - first)) * size_of(dtype));
    body(first, std::span(buffer));
  }
}

std::uint32_t write_optimizer(const fs::path& path, ModelState& model) {
  std::vector<StoredTensor> tensors;
  for (const auto& entry : model.entries())
    for (const auto& field : entry.fields)
      tensors.push_back({.name = state_name(field.name, entry.name),
                         .type = stored_type(field.dtype),
                         .shape = field.count == entry.size ? entry.shape : Shape{field.count}});
  SafetensorsWriter writer(path, std::move(tensors), {});
  std::vector<std::byte> buffer;
  for (const auto& entry : model.entries())
    for (std::size_t i = 0; i < entry.fields.size(); ++i)
      in_pieces(entry.fields[i].count, entry.fields[i].dtype, buffer,
                [&](std::int64_t first, std::span<std::byte> bytes) {
                  model.read_state(entry, i, first, bytes);
                  writer.write(bytes);
                });
  writer.finish();
  return writer.crc32();
}

std::uint32_t write_weights(const fs::path& path, const CheckpointState& state, ModelState& model,
                            StoredType type) {
  return save_weights(path, state.whole, state.space.weight_dtype(), type,
                      [&](std::size_t slot, std::int64_t first, std::span<std::byte> bytes) {
                        model.read_weights(model.entries()[slot], first, bytes);
                      });
}

std::uint32_t crc_of_file(const File& file) {
  std::vector<std::byte> buffer(std::size_t{1} << 22);
  const std::uint64_t size = file.size();
  uLong sum = crc32(0, nullptr, 0);
  for (std::uint64_t at = 0; at < size; at += buffer.size()) {
    const std::size_t count = std::min<std::uint64_t>(buffer.size(), size - at);
    file.read_at(at, std::span(buffer).first(count));
    file.drop_cache(at, count);
    sum = crc32(sum, reinterpret_cast<const Bytef*>(buffer.data()), static_cast<uInt>(count));
  }
  return static_cast<std::uint32_t>(sum);
}

[[noreturn]] void damaged(const fs::path& file, const std::string& why) {
  fail(fmt::format("{} is damaged: {}; resume from an older checkpoint with --resume PATH",
                   file.string(), why));
}

/// What is wrong with a file of a checkpoint is damage, whoever notices: the reader of a user's
/// file would call it wrong use.
template <class Body>
auto reading(const fs::path& file, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    damaged(file, error.what());
  }
}

void verify_file(const fs::path& path, const Json& expected) {
  const File file = reading(path, [&] { return File::open(path); });
  if (file.size() != expected.at("bytes").get<std::uint64_t>())
    damaged(path, fmt::format("{} bytes, {} expected", file.size(),
                              expected.at("bytes").get<std::uint64_t>()));
  if (crc_of_file(file) != expected.at("crc32").get<std::uint32_t>())
    damaged(path, "its checksum differs");
}

Json read_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "state.json";
  Json state = reading(path, [&] { return read_json_file(path, std::uint64_t{1} << 20); });
  try {
    // The state guards itself too: its own checksum is over everything else in it.
    const auto expected = state.at("crc32").get<std::uint32_t>();
    state.erase("crc32");
    const std::string text = state.dump();
    const auto actual = static_cast<std::uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
    if (actual != expected) damaged(path, "its checksum differs");
    if (state.at("version").get<int>() != version)
      fail(fmt::format("{} has version {}, this program reads {}", path.string(),
                       state.at("version").dump(), version));
    if (state.at("step").get<std::int64_t>() < 0) damaged(path, "the step is negative");
  } catch (const Json::exception&) {
    damaged(path, "a field is missing or of the wrong type");
  }
  return state;
}

void require_same_run(const fs::path& checkpoint, const Json& saved, const Json& run) {
  for (const auto& [key, value] : run.items()) {
    if (saved.contains(key) && saved.at(key) == value) continue;
    fail(fmt::format("{} cannot be resumed: its {} is {}, this run's is {}; start over with "
                     "--resume never and another --output",
                     checkpoint.string(), key,
                     saved.contains(key) ? saved.at(key).dump() : "not recorded", value.dump()),
         ErrorKind::usage);
  }
}

void read_weights(const SafetensorsReader& reader, const ParameterSpace::Slot& slot,
                  ParameterSpace& space) {
  const StoredTensor* stored = reader.find(slot.name);
  if (stored == nullptr || stored->shape != slot.whole())
    damaged(reader.path(), fmt::format("tensor {} is missing or of another shape", slot.name));
  read_floats(reader, *stored, element_count(slot.whole()), space.weight_dtype(),
              [&](std::int64_t first, std::span<std::byte> values) {
                space.write_shard(slot, first, values);
              });
}

/// Whether state stored as `type` can be kept as `dtype` without changing a value.
bool keeps_values(StoredType type, DType dtype) {
  return type == stored_type(dtype) || (type == StoredType::BF16 && dtype == DType::f32);
}

/// Refuses a checkpoint whose state this run would have to round.
void require_same_layout(const SafetensorsReader& reader, const ParameterSpace& space,
                         const Optimizer& optimizer) {
  for_each_field(space, optimizer, [&](const auto& slot, std::size_t, const StateField& field) {
    const StoredTensor* stored = reader.find(state_name(field.name, slot.name));
    const bool scales = field.name.ends_with("_scale");
    if (stored == nullptr ? !scales : keeps_values(stored->type, field.dtype)) return;
    fail(fmt::format("{} was written with another --state-layout: its {} of {} is {}, this run's "
                     "is {}, which would change it; resume with the layout it was written with",
                     reader.path().string(), field.name, slot.name,
                     stored == nullptr ? "not there" : name_of(stored->type), name_of(field.dtype)),
         ErrorKind::usage);
  });
}

/// State that was stored as it is kept here comes back as it was; narrower state is widened.
void read_state(const SafetensorsReader& reader, const ParameterSpace::Slot& slot,
                std::size_t place, const StateField& field, Optimizer& optimizer) {
  const std::string name = state_name(field.name, slot.name);
  const StoredTensor* stored = reader.find(name);
  if (stored == nullptr) damaged(reader.path(), fmt::format("tensor {} is missing", name));
  // What there is a number of for each weight is divided as the weights are.
  const Shard shard = field.count == slot.size ? slot.shard : Shard();
  const std::int64_t count = field.count == slot.size ? element_count(slot.whole()) : field.count;
  if (element_count(stored->shape) != count)
    damaged(reader.path(), fmt::format("tensor {} is of another shape", name));
  const auto write = [&](std::int64_t first, std::span<std::byte> values) {
    const auto mine = shard.pick(first, values, size_of(field.dtype));
    if (!mine.empty()) optimizer.write_state(slot, place, shard.place(first), mine);
  };
  if (stored->type != stored_type(field.dtype))
    return read_floats(reader, *stored, count, field.dtype, write);
  std::vector<std::byte> buffer;
  in_pieces(count, field.dtype, buffer, [&](std::int64_t first, std::span<std::byte> bytes) {
    reader.read(*stored, static_cast<std::uint64_t>(first) * size_of(field.dtype), bytes);
    write(first, bytes);
  });
}

}  // namespace

namespace {

/// Into `temporary`, by one rank with the help of the others.
void write_files(const fs::path& temporary, std::int64_t step, const Json& run,
                 const CheckpointState& state) {
  Json files;
  ModelState model = state.model();
  const auto record = [&](const char* name, std::uint32_t crc) {
    files[name] = {{"bytes", fs::file_size(temporary / name)}, {"crc32", crc}};
  };
  record("weights.safetensors", write_weights(temporary / "weights.safetensors", state, model,
                                              stored_type(state.space.weight_dtype())));
  record("optimizer.safetensors", write_optimizer(temporary / "optimizer.safetensors", model));
  Json json{{"version", version},
            {"step", step},
            {"updates", state.optimizer.updates()},
            {"run", run},
            {"files", files}};
  if (state.scaler.enabled())
    json["loss_scale"] = {{"scale", state.scaler.state().scale},
                          {"good_updates", state.scaler.state().good_updates}};
  if (const Json spikes = state.spikes ? state.spikes->state() : Json(); !spikes.is_null())
    json["spikes"] = spikes;
  const std::string text = json.dump();
  json["crc32"] =
      crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()));
  const std::string document = json.dump(2);
  write_file_durably(temporary / "state.json", std::as_bytes(std::span(document)));
  sync_directory(temporary);
}

void write_checkpoint(const fs::path& final_path, std::int64_t step, const Json& run,
                      const CheckpointState& state) {
  fs::create_directories(final_path.parent_path());
  const fs::path temporary =
      final_path.parent_path() / fmt::format("{}.tmp.{}", step_name(step), getpid());
  fs::remove_all(temporary);
  fs::create_directory(temporary);
  try {
    write_files(temporary, step, run, state);
    // Saving a step again (after a resume) replaces a checkpoint that holds the same bits.
    if (fs::exists(final_path)) fs::remove_all(final_path);
    rename_durably(temporary, final_path);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& folder, std::int64_t step, const Json& run,
                         const CheckpointState& state, std::int64_t keep) {
  Communicator& ranks = state.ranks.control;
  state.ranks.optimizer.settle();
  const fs::path final_path = folder / step_name(step);
  if (ranks.rank() == 0) {
    write_checkpoint(final_path, step, run, state);
    auto others = list_checkpoints(folder);
    // The new one stays, also where later steps of a run that was given up lie beside it.
    std::erase(others, final_path);
    for (std::size_t i = 0; i + static_cast<std::size_t>(keep) <= others.size(); ++i)
      fs::remove_all(others[i]);
  } else {
    ModelState model = state.model();
    write_weights({}, state, model, stored_type(state.space.weight_dtype()));
    write_optimizer({}, model);
  }
  ranks.barrier("checkpoint is whole")->wait();
  return final_path;
}

void save_weights(const fs::path& file, const CheckpointState& state, StoredType type) {
  ModelState model = state.model();
  write_weights(file, state, model, type);
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  if (fs::is_directory(folder))
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.is_directory() && is_checkpoint_name(entry.path().filename().string()))
        found.push_back(entry.path());
  std::ranges::sort(found, {}, [](const fs::path& path) {
    return std::pair(path.filename().string().size(), path.filename().string());
  });
  return found;
}

void remove_temporaries(const fs::path& folder) {
  if (!fs::is_directory(folder)) return;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().find(".tmp.") != std::string::npos)
      fs::remove_all(entry.path());
}

std::int64_t load_checkpoint(const fs::path& checkpoint, const Json& run,
                             const CheckpointState& into) {
  ParameterSpace& space = into.space;
  Optimizer& optimizer = into.optimizer;
  const Json state = read_state(checkpoint);
  try {
    require_same_run(checkpoint, state.at("run"), run);
    for (const char* name : {"weights.safetensors", "optimizer.safetensors"})
      verify_file(checkpoint / name, state.at("files").at(name));
    optimizer.set_updates(state.at("updates").get<std::int64_t>());
    if (into.scaler.enabled()) {
      const Json& saved = state.at("loss_scale");
      into.scaler = LossScaler({.scale = saved.at("scale").get<double>(),
                                .good_updates = saved.at("good_updates").get<std::int64_t>()});
    }
    if (into.spikes != nullptr) into.spikes->restore(state.value("spikes", Json()));
  } catch (const Json::exception&) {
    damaged(checkpoint / "state.json", "a field is missing or of the wrong type");
  }
  into.ranks.optimizer.settle();
  const auto open = [&](const char* name) {
    return reading(checkpoint, [&] { return SafetensorsReader(checkpoint / name); });
  };
  const SafetensorsReader weights = open("weights.safetensors");
  const SafetensorsReader moments = open("optimizer.safetensors");
  require_same_layout(moments, space, optimizer);
  reading(checkpoint, [&] {
    for (const auto& slot : space.slots())
      read_weights(weights, slot, space);
    for_each_field(space, optimizer, [&](const auto& slot, std::size_t i, const StateField& field) {
      read_state(moments, slot, i, field, optimizer);
    });
  });
  return state.at("step").get<std::int64_t>();
}

}  // namespace sluice
