#include "apps/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/checkpoint/checkpoint_manifest.h"
#include "engine/io/json_document.h"
#include "engine/io/safetensors.h"
#include "kernels/base/error.h"
#include "models/decoder/weights.h"
#include "parallel/comm/keep_alive.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Calls body(slot, index of the field, field) for every field of the optimizer state.
template <class Body>
void for_each_field(const ParameterSpace& space, const Optimizer& optimizer, Body&& body) {
  for (const auto& slot : space.slots()) {
    const auto fields = optimizer.fields(slot);
    for (std::size_t i = 0; i < fields.size(); ++i)
      body(slot, i, fields[i]);
  }
}

void require_same_run(const fs::path& checkpoint, const Json& saved, const Json& run) {
  for (const auto& [key, value] : run.items()) {
    if (saved.contains(key) && saved.at(key) == value) continue;
    if (key == "data_checksum" && !saved.contains(key)) continue;  // of an older program
    // Pairs are cut and packed into sequences.
    const bool data = key.starts_with("data");
    fail(fmt::format(
             "{} cannot be resumed: its {} is {}, this run's is {}; {}start over with "
             "--resume never and another --output",
             checkpoint.string(), key, saved.contains(key) ? shown(saved.at(key)) : "not recorded",
             value.dump(),
             data ? "give the same data (of pairs, also the same --seq-len and --pack), or " : ""),
         ErrorKind::usage);
  }
}

void read_weights(const SafetensorsReader& reader, const ParameterSpace::Slot& slot,
                  ParameterSpace& space) {
  const std::int64_t begin = slot.shard.index(0), end = slot.shard.index(slot.size - 1) + 1;
  for (const StoredSlice& slice : slot.stored()) {
    const StoredTensor* stored = reader.find(slice.name);
    if (stored == nullptr || stored->shape != slice.shape)
      damaged(reader.path(), fmt::format("tensor {} is missing or of another shape", slice.name));
    const std::int64_t first = std::max<std::int64_t>(begin - slice.first, 0);
    const std::int64_t last = std::min(end - slice.first, element_count(slice.shape));
    if (first >= last) continue;
    read_floats(reader, *stored, first, last - first, space.weight_dtype(),
                [&](std::int64_t at, std::span<std::byte> values) {
                  space.write_shard(slot, slice.first + at, values);
                });
  }
}

/// Returns true if state stored as `type` can be kept as `dtype` without changing a value.
bool keeps_values(StoredType type, DType dtype) {
  return type == stored_type(dtype) || (type == StoredType::BF16 && dtype == DType::f32);
}

/// Throws Error (usage) for a checkpoint whose state this run would have to round.
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

/// Returns the first element that no training produces: one that is not finite or, in second
/// moments and scales, one below zero. Every 8-bit code is valid.
template <class Value, class Widen>
std::optional<std::int64_t> first_bad(std::span<const std::byte> bytes, float least, Widen widen) {
  const auto count = static_cast<std::int64_t>(bytes.size() / sizeof(Value));
  const auto good = [&](std::int64_t i) {
    Value stored;
    std::memcpy(&stored, bytes.data() + i * static_cast<std::int64_t>(sizeof stored),
                sizeof stored);
    const float value = widen(stored);
    return (value >= least) & (value <= std::numeric_limits<float>::max());  // false for NaN
  };
  bool all = true;  // no branch, so that the loop can be vectorized
  for (std::int64_t i = 0; i < count; ++i)
    all &= good(i);
  for (std::int64_t i = 0; !all && i < count; ++i)
    if (!good(i)) return i;
  return std::nullopt;
}

void require_good_state(const fs::path& file, const std::string& name, DType dtype,
                        std::int64_t first, std::span<const std::byte> bytes) {
  const std::string_view field = std::string_view(name).substr(0, name.find('.'));
  const bool squares = field.ends_with("second_moment") || field.ends_with("_scale");
  const float least = squares ? 0 : -std::numeric_limits<float>::max();
  std::optional<std::int64_t> bad;
  if (dtype == DType::f32)
    bad = first_bad<float>(bytes, least, [](float value) { return value; });
  else if (dtype == DType::bf16)
    bad = first_bad<std::uint16_t>(bytes, least, [](std::uint16_t upper) {
      return std::bit_cast<float>(static_cast<std::uint32_t>(upper) << 16);
    });
  if (bad)
    damaged(file, fmt::format("element {} of tensor {} is not finite{}", first + *bad, name,
                              squares ? " or below zero" : ""));
}

/// Reads elements [first, first + count) in pieces, as they are stored.
void read_unchanged(const SafetensorsReader& reader, const StoredTensor& stored, std::int64_t first,
                    std::int64_t count, const TakeElements& take) {
  constexpr std::int64_t piece = 1 << 20;
  const std::size_t width = size_of(stored.type);
  std::vector<std::byte> buffer;
  for (const std::int64_t end = first + count; first < end; first += piece) {
    buffer.resize(static_cast<std::size_t>(std::min(piece, end - first)) * width);
    reader.read(stored, static_cast<std::uint64_t>(first) * width, buffer);
    take(first, buffer);
  }
}

/// Reads what this rank keeps of a field. State in this run's dtype is read unchanged; narrower
/// state is widened.
void read_state(const SafetensorsReader& reader, const ParameterSpace::Slot& slot,
                std::size_t place, const StateField& field, Optimizer& optimizer) {
  const std::string name = state_name(field.name, slot.name);
  const StoredTensor* stored = reader.find(name);
  if (stored == nullptr) damaged(reader.path(), fmt::format("tensor {} is missing", name));
  // A field with one number per weight is sharded as the weights are.
  const Shard shard = field.count == slot.size ? slot.shard : Shard();
  const std::int64_t count = field.count == slot.size ? element_count(slot.whole()) : field.count;
  if (element_count(stored->shape) != count)
    damaged(reader.path(), fmt::format("tensor {} is of another shape", name));
  const auto write = [&](std::int64_t first, std::span<std::byte> values) {
    require_good_state(reader.path(), name, field.dtype, first, values);
    const auto mine = shard.pick(first, values, size_of(field.dtype));
    if (!mine.empty()) optimizer.write_state(slot, place, shard.place(first), mine);
  };
  for (const auto& [begin, end] : optimizer.kept(slot, place)) {
    // The rank also reads what lies between its shard's elements.
    const std::int64_t first = shard.index(begin), number = shard.index(end - 1) + 1 - first;
    if (stored->type != stored_type(field.dtype))
      read_floats(reader, *stored, first, number, field.dtype, write);
    else
      read_unchanged(reader, *stored, first, number, write);
  }
}

void read_files(const fs::path& checkpoint, ParameterSpace& space, Optimizer& optimizer) {
  const SafetensorsReader weights(checkpoint / weights_file);
  const SafetensorsReader moments(checkpoint / optimizer_file);
  require_same_layout(moments, space, optimizer);
  for (const auto& slot : space.slots())
    read_weights(weights, slot, space);
  for_each_field(space, optimizer, [&](const auto& slot, std::size_t i, const StateField& field) {
    read_state(moments, slot, i, field, optimizer);
  });
}

}  // namespace

CheckpointFiles lay_out(const CheckpointState& state) {
  ModelState model = state.model();
  StateFile weights = lay_out_weights(model, state.whole, stored_type(model.weight_dtype()));
  StateFile optimizer = lay_out_optimizer(model);
  return {std::move(model), std::move(weights), std::move(optimizer)};
}

void write_files(CheckpointFiles& files, Communicator& ranks, const std::vector<int>& writers,
                 Output& weights, Output& optimizer) {
  write_together(files.weights, files.model, ranks, writers, weights);
  write_together(files.optimizer, files.model, ranks, writers, optimizer);
}

CheckpointManifest describe(std::int64_t step, const Json& run, const CheckpointState& state) {
  const SpaceOptions& space = state.space.options();
  Json fields{{"updates", state.optimizer.updates()},
              {"run", run},
              {"memory", to_json({.micro_batch = state.micro_batch,
                                  .layout = space.layout,
                                  .narrow_gradients = space.narrow_gradients,
                                  .head_chunk = state.head_chunk})}};
  if (state.scaler.enabled())
    fields["loss_scale"] = {{"scale", state.scaler.state().scale},
                            {"good_updates", state.scaler.state().good_updates}};
  if (state.schedule.rate > 0) fields["next_rate"] = state.schedule.at(step);
  if (const Json spikes = state.spikes ? state.spikes->state() : Json(); !spikes.is_null())
    fields["spikes"] = spikes;
  return {.step = step, .fields = std::make_shared<const Json>(std::move(fields))};
}

void save_weights(const fs::path& file, const CheckpointState& state, StoredType type) {
  Communicator& ranks = state.ranks.control;
  ModelState model = state.model();
  const StateFile layout = lay_out_weights(model, state.whole, type);
  const Writers writers = find_writers(ranks, file.parent_path());
  PartOutput output(writers.folder / ranks.share_text(file.filename().string(), 0, "export"),
                    range_of_writer(layout.bytes(), ranks.rank(), writers.ranks).begin);
  write_together(layout, model, ranks, writers.ranks, output);
  if (const std::string error = first_error(ranks, output.error()); !error.empty()) fail(error);
}

std::int64_t load_checkpoint(const fs::path& checkpoint, const CheckpointManifest& manifest,
                             const Json& run, const CheckpointState& into) {
  ParameterSpace& space = into.space;
  Optimizer& optimizer = into.optimizer;
  const Json& state = *manifest.fields;
  const fs::path file = checkpoint / "state.json";
  constexpr std::int64_t max_updates = std::int64_t{1} << 62;
  try {
    require_same_run(checkpoint, state.at("run"), run);
    optimizer.set_updates(whole_number(state.at("updates"), 0, max_updates, file));
    if (into.scaler.enabled()) {
      const Json& saved = state.at("loss_scale");
      const auto scale = saved.at("scale").get<double>();
      if (!(scale > 0 && std::isfinite(scale))) damaged(file, "the loss scale is not positive");
      into.scaler = LossScaler(
          {.scale = scale,
           .good_updates = whole_number(saved.at("good_updates"), 0, max_updates, file)});
    }
    if (into.spikes != nullptr) into.spikes->restore(state.value("spikes", Json()));
  } catch (const Json::exception&) {
    damaged(file, "a field is missing or of the wrong type");
  }
  into.ranks.optimizer.synchronize();
  keep_alive(into.ranks.control, "checkpoint", [&] { read_files(checkpoint, space, optimizer); });
  return manifest.step;
}

}  // namespace sluice
