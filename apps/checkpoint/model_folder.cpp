#include "apps/checkpoint/model_folder.h"

#include <fmt/format.h>

#include "apps/cli/progress.h"
#include "engine/io/durable.h"
#include "engine/io/replaced_folder.h"
#include "models/gpt2/weights.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string_view torch_name(StoredType type) {
  switch (type) {
    case StoredType::BF16:
      return "bfloat16";
    case StoredType::F16:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace

void require_model_folder(const fs::path& folder) {
  if (!fs::is_directory(folder))
    fail(fmt::format("there is no model folder {}; give a folder with config.json and "
                     "model.safetensors",
                     folder.string()),
         ErrorKind::usage);
  if (fs::exists(folder / "config.json")) return;
  if (fs::exists(folder / "model" / "config.json"))
    fail(fmt::format("{} is a run's folder; its model is {}", folder.string(),
                     (folder / "model").string()),
         ErrorKind::usage);
  fail(
      fmt::format("the model folder {} has no config.json; take it from where the weights are from",
                  folder.string()),
      ErrorKind::usage);
}

LoadedModel load_model(const fs::path& folder, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, std::optional<std::int64_t> context) {
  require_model_folder(folder);
  return load_model({.config = read_config(folder / "config.json"),
                     .weights = folder,
                     .folder = folder,
                     .run = {}},
                    device, dtype, use, context);
}

LoadedModel load_model(const ModelSource& source, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, std::optional<std::int64_t> context) {
  GPT2Config config = source.config;
  if (context) {
    if (*context > config.n_positions)
      fail(fmt::format("--context {} is longer than the model's {} positions; give {} at most",
                       *context, config.n_positions, config.n_positions),
           ErrorKind::usage);
    config.n_positions = *context;
  }
  check_weights(source.weights, config);
  LoadedModel loaded{std::make_unique<GPT2>(config), nullptr};
  loaded.space = std::make_unique<ParameterSpace>(loaded.model->parameters(), device, dtype, use);
  load_weights(source.weights, config, *loaded.space);
  return loaded;
}

void export_model(const fs::path& folder, const GPT2Config& config, const Tokenizer* tokenizer,
                  StoredType type, const std::function<void(const fs::path&)>& save,
                  const ModelNote& note) {
  ReplacedFolder files(folder, "config.json", [&](std::string_view name) {
    return name == "config.json" || is_weights_file(name) || is_tokenizer_file(name) ||
           name == note.name;
  });
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file_durably(files.path() / name, std::as_bytes(std::span(text)));
  };
  save(files.path() / "model.safetensors");
  std::int64_t end_of_text = -1;
  if (tokenizer != nullptr) {
    tokenizer->save(files.path());
    end_of_text = tokenizer->end_of_text().value_or(-1);
  }
  if (!note.name.empty()) write(note.name, note.text);
  write("config.json", config_json(config, torch_name(type), end_of_text));
  for (const std::string& stayed : files.publish())
    say_warning(stayed);
}

}  // namespace sluice
