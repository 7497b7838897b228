#include "apps/train/model_source.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/train/checkpoint_folder.h"
#include "apps/train/checkpoint_manifest.h"
#include "apps/train/command_line.h"
#include "apps/train/setup.h"

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
  manifest.files.erase(optimizer_file);  // nobody reads it here
  verify_files(checkpoint, manifest);
  const fs::path state = checkpoint / "state.json";
  try {
    const auto& run = manifest.fields->at("run");
    // Whether it ends with a separator or is ".", the run is two folders above.
    return {.config = config_of(run.at("model"), state),
            .weights = checkpoint / weights_file,
            .folder = checkpoint,
            .run = fs::canonical(checkpoint).parent_path().parent_path(),
            .data_fingerprint = run.at("data").get<std::string>()};
  } catch (const nlohmann::json::exception&) {
    damaged(state, "\"run\" is missing or does not say what was trained");
  }
}

/// The options of the run that wrote a configuration.
TrainOptions options_in(const fs::path& config) {
  TrainOptions options;
  CommandLine line("train_gpt2", "");
  declare_options(line, options);
  const std::string file = config.string();
  const char* const arguments[] = {"train_gpt2", "--config", file.c_str()};
  line.parse(3, arguments);
  return options;
}

/// Characters get their ids from the text: that of another text would say something else.
void require_same_text(const TrainOptions& o, const fs::path& text, const Tokenizer& tokenizer,
                       const ModelSource& source) {
  if (tokenizer.vocab_size() <= source.config.vocab_size) {
    const Dataset data = open_dataset(text, o.val_data, &tokenizer, source.config.vocab_size);
    if (fingerprint(*data.train) == source.data_fingerprint) return;
  }
  fail(fmt::format("the characters of this model are those of {} as it was when the training "
                   "began, and it has changed since; bring it back, or give --tokenizer-dir with a "
                   "folder that has the chars.json of then",
                   text.string()),
       ErrorKind::usage);
}

}  // namespace

ModelSource find_model(const fs::path& path) {
  if (fs::exists(path / "config.json"))
    return {
        .config = read_config(path / "config.json"), .weights = path, .folder = path, .run = {}};
  if (fs::exists(path / "state.json")) return checkpoint_at(path);
  if (fs::exists(path / "model" / "config.json")) return find_model(path / "model");
  const auto checkpoints = list_checkpoints(path / "checkpoints");
  if (!checkpoints.empty()) return checkpoint_at(checkpoints.back());
  fail(
      fmt::format("{} is no model: a model folder has config.json and model.safetensors, an OUTPUT "
                  "of train_gpt2 has model/ or checkpoints/step-N, and a checkpoint has state.json",
                  path.string()),
      ErrorKind::usage);
}

std::unique_ptr<Tokenizer> load_tokenizer(const ModelSource& source) {
  if (source.run.empty() || has_tokenizer(source.folder)) return load_tokenizer(source.folder);
  if (has_tokenizer(source.run / "model")) return load_tokenizer(source.run / "model");
  const fs::path config = source.run / "config.toml";
  if (!fs::exists(config))
    fail(fmt::format("{} has no tokenizer, and of its run there is neither {} nor {}; give "
                     "--tokenizer-dir with the folder of the tokenizer, or ids with --tokens",
                     source.folder.string(), (source.run / "model").string(), config.string()),
         ErrorKind::usage);
  const TrainOptions options = options_in(config);
  try {
    TokenizerOfRun found = tokenizer_of_run(options);
    if (!found.tokenizer)
      fail(fmt::format(
               "{} was trained on ids without a tokenizer; give --tokenizer-dir, or ids with "
               "--tokens",
               source.folder.string()),
           ErrorKind::usage);
    if (!found.text.empty()) require_same_text(options, found.text, *found.tokenizer, source);
    return std::move(found.tokenizer);
  } catch (const Error& error) {
    // Paths in it are as they were given, so perhaps from another folder.
    fail(fmt::format("the tokenizer of {} cannot be found by {}: {}", source.folder.string(),
                     config.string(), error.what()),
         error.kind());
  }
}

}  // namespace sluice
