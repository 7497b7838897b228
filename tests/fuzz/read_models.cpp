#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/checkpoint/checkpoint_history.h"
#include "engine/io/section_sums.h"
#include "models/decoder/weights.h"
#include "tests/fuzz/harness.h"
#include "tests/fuzz/small_run.h"

namespace sluice::fuzz {
namespace {

using Json = nlohmann::json;

/// A model's weights are finite or refused.
void require_finite(const ParameterSpace& space) {
  for (const auto& slot : space.slots()) {
    std::vector<float> values(static_cast<std::size_t>(slot.size));
    space.read_weights(slot.offset, std::as_writable_bytes(std::span(values)));
    for (const float value : values)
      require(std::isfinite(value), "a weight that is not finite was accepted");
  }
}

/// state.json with its own checksum put right, so that what it says is looked at.
std::string sealed(Json state) {
  if (!state.is_object()) return state.dump();
  state.erase("crc32");
  const std::string text = state.dump();
  state["crc32"] = crc32_of(std::as_bytes(std::span(text)));
  return state.dump();
}

/// state.json that lists a file as these bytes.
std::string listed(const std::string& text, const char* file, Bytes bytes) {
  Json state = Json::parse(text);
  SectionSums sums;
  sums.add(std::as_bytes(std::span(bytes)));
  state["files"][file]["bytes"] = sums.bytes();
  state["files"][file]["crc32"] = sums.sums();
  return sealed(std::move(state));
}

std::string resealed(Bytes text) {
  const Json state = Json::parse(text, nullptr, false);
  return state.is_discarded() ? std::string(text) : sealed(state);
}

/// resume.json of a folder without checkpoints.
void read_point(Bytes bytes) {
  const auto folder = put("resumed/resume.json", bytes).parent_path();
  const auto point = CheckpointHistory(folder).resume_point();
  require(point && point->skip_batches >= 0 && point->saves >= 0 && point->keep >= 0,
          "a negative number was accepted");
  require(CheckpointHistory(folder).last_save() == point->saves, "its saves are not counted");
}

}  // namespace

void read_weights(Bytes input) {
  static const SmallModel into(ParameterSpace::Use::inference);
  [[maybe_unused]] static const auto shards = {put("shards/a.safetensors", small_shard(true)),
                                               put("shards/b.safetensors", small_shard(false))};
  const Bytes bytes = input.substr(std::min<std::size_t>(1, input.size()));
  const bool index = input.starts_with('i');
  const auto file =
      put(index ? "shards/model.safetensors.index.json" : "one/model.safetensors", bytes);
  load_weights(file.parent_path(), into.config, *into.space);
  require_finite(*into.space);
}

void read_checkpoint(Bytes input) {
  static SmallRun run;
  const Bytes bytes = input.substr(std::min<std::size_t>(1, input.size()));
  CheckpointFiles files = run.files();
  switch (input.empty() ? 's' : input[0]) {
    case 'w':
      files.weights = bytes;
      files.state = listed(files.state, "weights.safetensors", bytes);
      break;
    case 'o':
      files.optimizer = bytes;
      files.state = listed(files.state, "optimizer.safetensors", bytes);
      break;
    case 'd':
      files.weights = bytes;
      break;
    case 'r':
      files.state = resealed(bytes);
      break;
    case 'p':
      return read_point(bytes);
    default:
      files.state = bytes;
  }
  require(run.load(files) >= 0, "a negative step was accepted");
  require_finite(run.space());
  require(run.save_and_load(1) == 1, "a checkpoint does not load once saved");
}

}  // namespace sluice::fuzz
