#include "tests/fuzz/small_run.h"

#include <nlohmann/json.hpp>

#include "apps/checkpoint/checkpoint_manifest.h"
#include "apps/checkpoint/checkpoint_saver.h"
#include "engine/io/stored_tensor.h"
#include "kernels/base/runtime.h"
#include "optim/make_optimizer.h"
#include "tests/fuzz/harness.h"
#include "tests/support/temp_dir.h"

namespace sluice::fuzz {
namespace {

using Slots = std::vector<ParameterSpace::Slot>;

Slots half(const SmallModel& made, bool first) {
  const auto& slots = made.space->slots();
  const auto middle = slots.begin() + static_cast<std::ptrdiff_t>(slots.size() / 2);
  return first ? Slots(slots.begin(), middle) : Slots(middle, slots.end());
}

/// Written again, a manifest tells the same; its lineage numbers saves from 1.
void require_same_again(const CheckpointManifest& manifest) {
  const std::string text = to_text(manifest);
  const CheckpointManifest again = read_manifest(put("manifest/state.json", text).parent_path());
  require(to_text(again) == text, "a manifest differs once written");
  require(again.step == manifest.step && again.keep == manifest.keep, "a number differs");
  require(manifest.keep >= 0 && manifest.lineage.save() >= 0, "a negative number was accepted");
  for (const std::int64_t save : manifest.lineage.named())
    require(save > 0 && manifest.lineage.holds(save), "a save is named that is none of its own");
}

std::string file_of(const SmallModel& made, const Slots& slots) {
  std::vector<StoredTensor> tensors;
  for (const auto& slot : slots)
    tensors.push_back({.name = slot.name, .type = StoredType::F32, .shape = slot.shape});
  SafetensorsWriter writer(scratch() / "model.tmp", std::move(tensors), {});
  for (const auto& slot : slots)
    write_floats(
        writer, slot.size, DType::f32,
        [&](std::int64_t first, std::span<std::byte> out) {
          made.space->read_weights(slot.offset + first, out);
        },
        StoredType::F32);
  writer.finish();
  return test::read_file(scratch() / "model.tmp");
}

}  // namespace

SmallModel::SmallModel(ParameterSpace::Use use)
    : config{.n_layer = 1,
             .n_head = 2,
             .n_embd = 4,
             .n_inner = 4,
             .vocab_size = 3,
             .n_positions = 2},
      model(std::make_unique<Decoder>(config)),
      space(std::make_unique<ParameterSpace>(model->parameters(), make_cpu_device(), DType::f32,
                                             use)) {
  space->initialize(1);
}

std::string small_model_file() {
  const SmallModel made(ParameterSpace::Use::inference);
  return file_of(made, made.space->slots());
}

std::string small_shard(bool first) {
  const SmallModel made(ParameterSpace::Use::inference);
  return file_of(made, half(made, first));
}

std::vector<std::string> small_shard_names(bool first) {
  std::vector<std::string> names;
  for (const auto& slot : half(SmallModel(ParameterSpace::Use::inference), first))
    names.push_back(slot.name);
  return names;
}

SmallRun::SmallRun()
    : optimizer_(make_adamw(*small_.space, {})),
      rank_(*small_.space, *optimizer_),
      state_{*small_.space,          *optimizer_,     scaler_, rank_.parallel,
             small_.space->layout(), rank_.ranks.mesh},
      run_(std::make_unique<nlohmann::json>(nlohmann::json{{"seed", 5}, {"precision", "fp16"}})),
      folder_(save_checkpoint(scratch() / "checkpoints", 3, *run_, state_, 1)),
      files_{test::read_file(folder_ / "state.json"),
             test::read_file(folder_ / "weights.safetensors"),
             test::read_file(folder_ / "optimizer.safetensors")} {}

SmallRun::~SmallRun() = default;

std::int64_t SmallRun::load(const CheckpointFiles& files) {
  test::write_file(folder_ / "state.json", files.state);
  test::write_file(folder_ / "weights.safetensors", files.weights);
  test::write_file(folder_ / "optimizer.safetensors", files.optimizer);
  return load_from(folder_);
}

std::int64_t SmallRun::save_and_load(std::int64_t step) {
  return load_from(save_checkpoint(scratch() / "again", step, *run_, state_, 1));
}

std::int64_t SmallRun::load_from(const std::filesystem::path& folder) {
  const CheckpointManifest manifest = read_manifest(folder);
  require_same_again(manifest);
  verify_files(folder, manifest);
  recorded_choice(folder, manifest);
  return load_checkpoint(folder, manifest, *run_, state_);
}

}  // namespace sluice::fuzz
