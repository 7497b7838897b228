#include "apps/checkpoint/model_source.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "apps/checkpoint/checkpoint_manifest.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

GPT2Config config_of(const nlohmann::json& shape, const fs::path& state) {
  GPT2Config config;
  try {
    config.n_layer = shape.at(0);
    config.n_head = shape.at(1);
    config.n_embd = shape.at(2);
    config.n_inner = shape.at(3);
    config.vocab_size = shape.at(4);
    config.n_positions = shape.at(5);
    config.layer_norm_epsilon = shape.at(6);
    validate(config);
  } catch (const nlohmann::json::exception&) {
    damaged(state, "\"model\" is not the shape of one");
  }
  return config;
}

ModelSource checkpoint_at(const fs::path& checkpoint) {
  CheckpointManifest manifest = read_manifest(checkpoint);
  manifest.files.erase(optimizer_file);  // not needed here, so not verified
  verify_files(checkpoint, manifest);
  const fs::path state = checkpoint / "state.json";
  try {
    const auto& run = manifest.fields->at("run");
    return {.config = config_of(run.at("model"), state),
            .weights = checkpoint / weights_file,
            .folder = checkpoint,
            .run = folder_of(checkpoint).parent_path()};
  } catch (const nlohmann::json::exception&) {
    damaged(state, "\"run\" is missing or does not say what was trained");
  }
}

}  // namespace

ModelSource find_model(const fs::path& path) {
  if (fs::exists(path / "config.json"))
    return {
        .config = read_config(path / "config.json"), .weights = path, .folder = path, .run = {}};
  if (fs::exists(path / "state.json")) return checkpoint_at(path);
  if (fs::exists(path / "model" / "config.json")) return find_model(path / "model");
  const fs::path newest = CheckpointHistory(path / "checkpoints").newest();
  if (!newest.empty()) return checkpoint_at(newest);
  fail(
      fmt::format("{} is no model: a model folder has config.json and model.safetensors, an OUTPUT "
                  "of train_gpt2 has model/ or checkpoints/step-N, and a checkpoint has state.json",
                  path.string()),
      ErrorKind::usage);
}

std::unique_ptr<Tokenizer> load_tokenizer(const ModelSource& source) {
  if (source.run.empty() || has_tokenizer(source.folder)) return load_tokenizer(source.folder);
  for (const char* const place : {"model", "tokenizer"})
    if (has_tokenizer(source.run / place)) return load_tokenizer(source.run / place);
  fail(fmt::format("{} has no tokenizer, and of its run neither {} nor {} has one; give "
                   "--tokenizer-dir with the folder of the tokenizer, or ids with --tokens",
                   source.folder.string(), (source.run / "model").string(),
                   (source.run / "tokenizer").string()),
       ErrorKind::usage);
}

}  // namespace sluice
