#include "apps/checkpoint/model_folder.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "apps/checkpoint/checkpoint_manifest.h"
#include "apps/cli/progress.h"
#include "apps/cli/shell_quote.h"
#include "engine/io/durable.h"
#include "engine/io/file.h"
#include "engine/io/gguf.h"
#include "engine/io/safetensors.h"
#include "kernels/base/error.h"
#include "models/decoder/config_json/config_file.h"
#include "models/decoder/config_json/config_writer.h"
#include "models/decoder/config_json/generation_config.h"
#include "models/decoder/weights.h"
#include "models/lora/adapter_file.h"
#include "models/lora/merge_adapter.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

DecoderConfig config_of(const nlohmann::json& shape, const fs::path& state) {
  if (shape.is_object()) return parse_config(shape, state.string());
  DecoderConfig config;
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

/// Reads a folder's config.json and says what its user should know of it.
DecoderConfig config_in(const fs::path& folder) {
  DecoderConfig config = read_config(folder / "config.json");
  for (const std::string& note : notes_on(config))
    say_note(note);
  return config;
}

/// Returns the model that the adapters of a folder name, with these.
ModelSource adapter_at(const fs::path& folder) {
  const std::string base = read_adapter(folder).base;
  if (base.empty() || !fs::exists(fs::path(base) / "config.json"))
    fail(fmt::format("{} holds adapters for the model '{}', which is no model folder here; give "
                     "--model with the model's folder and --adapter {}",
                     folder.string(), base, folder.string()),
         ErrorKind::usage);
  return {.config = config_in(base),
          .weights = base,
          .folder = has_tokenizer(folder) ? folder : fs::path(base),
          .run = {},
          .adapter = folder};
}

ModelSource checkpoint_at(const fs::path& checkpoint) {
  CheckpointManifest manifest = read_manifest(checkpoint);
  manifest.files.erase(optimizer_file);  // not needed here, so not verified
  verify_files(checkpoint, manifest);
  const fs::path state = checkpoint / "state.json";
  try {
    const auto& run = manifest.fields->at("run");
    if (run.contains("lora"))
      fail(fmt::format(
               "{} holds adapters that were being trained, without their model; the run "
               "writes them to {} when it ends or is stopped, in the form that is read here",
               checkpoint.string(), (folder_of(checkpoint).parent_path() / "model").string()),
           ErrorKind::usage);
    return {.config = config_of(run.at("model"), state),
            .weights = checkpoint / weights_file,
            .folder = checkpoint,
            .run = folder_of(checkpoint).parent_path()};
  } catch (const nlohmann::json::exception&) {
    damaged(state, "\"run\" is missing or does not say what was trained");
  }
}

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

/// Says how a GGUF file becomes a model folder.
void refuse_gguf(const fs::path& path) {
  if (is_gguf_name(path))
    fail(fmt::format("{} is a GGUF file, not a model folder; convert --input {} --output FOLDER "
                     "makes one of it",
                     path.string(), quoted(path.string())),
         ErrorKind::usage);
}

bool is_of_a_model(std::string_view name) {
  return name == "config.json" || is_weights_file(name) || is_tokenizer_file(name) ||
         name == adapter_config_file || name == adapter_weights_file ||
         name == generation_config_file;
}

bool wrote_weights(const std::string& program, const fs::path& file) {
  try {
    const SafetensorsReader reader(file);
    const auto mark = reader.metadata().find(weights_writer);
    return mark != reader.metadata().end() && mark->second == program;
  } catch (const Error&) {
    return false;
  }
}

/// Returns true if the program was killed while it replaced the folder's files one by one: the new
/// weights are in a temporary folder then, and the folder has no configuration.
bool was_replacing(const std::string& program, const fs::path& folder) {
  if (fs::exists(folder / "config.json")) return false;
  std::error_code none;
  for (const fs::path& place : {directory_of(fs::weakly_canonical(folder, none)), folder})
    for (const auto& entry : fs::directory_iterator(place, none))
      if (!temporary_of(entry.path().filename().string()).empty() &&
          wrote_weights(program, entry.path() / "model.safetensors"))
        return true;
  return false;
}

}  // namespace

void require_own_model(const std::string& program, const fs::path& folder) {
  std::error_code none;
  if (fs::exists(folder, none) && !fs::is_directory(folder, none))
    fail(fmt::format("--output {} is not a folder; give another name", folder.string()),
         ErrorKind::usage);
  if (wrote_weights(program, folder / "model.safetensors") || was_replacing(program, folder))
    return;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (is_of_a_model(entry.path().filename().string()))
      fail(fmt::format("--output {} holds a model that {} did not write ({}); give another folder",
                       folder.string(), program, entry.path().filename().string()),
           ErrorKind::usage);
}

ModelSource find_model(const fs::path& path, const fs::path& adapter) {
  if (!adapter.empty()) {
    read_adapter(adapter);
    ModelSource source = find_model(path);
    if (!source.adapter.empty())
      fail(fmt::format("--adapter {}: {} holds adapters itself; give the model that they are for",
                       adapter.string(), path.string()),
           ErrorKind::usage);
    source.adapter = adapter;
    return source;
  }
  refuse_gguf(path);
  if (is_adapter_folder(path)) return adapter_at(path);
  if (fs::exists(path / "config.json"))
    return {.config = config_in(path), .weights = path, .folder = path, .run = {}};
  if (fs::exists(path / "state.json")) return checkpoint_at(path);
  for (const char* const name : {"config.json", adapter_config_file})
    if (fs::exists(path / "model" / name)) return find_model(path / "model");
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

std::unique_ptr<Tokenizer> find_tokenizer(const fs::path& folder) {
  if (!has_tokenizer(folder)) return nullptr;
  return without_fault([&] { return load_tokenizer(folder); });
}

std::unique_ptr<Tokenizer> find_tokenizer(const ModelSource& source) {
  if (source.run.empty() || has_tokenizer(source.folder)) return find_tokenizer(source.folder);
  auto found = find_tokenizer(source.run / "model");
  return found ? std::move(found) : find_tokenizer(source.run / "tokenizer");
}

std::unique_ptr<Tokenizer> without_fault(const std::function<std::unique_ptr<Tokenizer>()>& load) {
  try {
    return load();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    say_warning(fmt::format("{}; this works on ids, without a tokenizer", error.what()));
    return nullptr;
  }
}

void require_model_folder(const fs::path& folder) {
  refuse_gguf(folder);
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

void shorten_context(DecoderConfig& config, std::optional<std::int64_t> context) {
  if (!context) return;
  if (*context > config.n_positions)
    fail(fmt::format("--context {} is longer than the model's {} positions; give {} at most",
                     *context, config.n_positions, config.n_positions),
         ErrorKind::usage);
  config.n_positions = *context;
}

LoadedModel load_model(const fs::path& folder, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, std::optional<std::int64_t> context) {
  require_model_folder(folder);
  return load_model({.config = config_in(folder), .weights = folder, .folder = folder, .run = {}},
                    device, dtype, use, context);
}

LoadedModel make_model(const DecoderConfig& config, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, const VisitingBlocks& visiting) {
  SpaceOptions options{.host = visiting.host};
  const std::int64_t staying = config.n_layer - visiting.host_blocks;
  const auto sections = [](std::int64_t layers) {
    return static_cast<std::size_t>(Decoder::section_of(layers));
  };
  options.residency.assign(sections(staying), Residency::device);
  options.residency.resize(sections(config.n_layer), Residency::host);
  LoadedModel made{std::make_unique<Decoder>(config), nullptr};
  made.space =
      std::make_unique<ParameterSpace>(made.model->parameters(), device, dtype, use, options);
  if (!made.space->layout().rests()) return made;
  made.ring = std::make_unique<WeightRing>(*made.space);
  made.model->set_before_weights([ring = made.ring.get()](std::int64_t layer) {
    ring->enter(Decoder::section_of(layer));
    ring->prefetch();
  });
  return made;
}

LoadedModel load_model(const ModelSource& source, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, std::optional<std::int64_t> context,
                       const VisitingBlocks& visiting) {
  DecoderConfig config = source.config;
  shorten_context(config, context);
  check_weights(source.weights, config);
  LoadedModel loaded = make_model(config, device, dtype, use, visiting);
  load_weights(source.weights, config, *loaded.space);
  if (!source.adapter.empty()) merge_adapter(source.adapter, config, *loaded.space, dtype);
  return loaded;
}

ModelExport::ModelExport(const fs::path& folder, const DecoderConfig& config, ModelNote note)
    : config_(config),
      note_(std::move(note)),
      files_(folder, config.lora.rank > 0 ? adapter_config_file : "config.json",
             [this](std::string_view name) { return is_of_a_model(name) || name == note_.name; }) {}

fs::path ModelExport::weights() const {
  return files_.path() / (config_.lora.rank > 0 ? adapter_weights_file : "model.safetensors");
}

void ModelExport::publish(const Tokenizer* tokenizer, StoredType type, const fs::path& base) {
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file_durably(files_.path() / name, std::as_bytes(std::span(text)));
  };
  std::int64_t end_of_text = -1;
  if (tokenizer != nullptr) {
    tokenizer->save(files_.path());
    end_of_text = tokenizer->end_of_text().value_or(-1);
  }
  if (!note_.name.empty()) write(note_.name, note_.text);
  const fs::path generation = base / generation_config_file;
  if (config_.lora.rank == 0 && fs::exists(generation))
    write(generation_config_file, read_text_file(generation, std::size_t{1} << 20));
  if (config_.lora.rank > 0)
    write(adapter_config_file, adapter_config_json(config_, fs::absolute(base).string()));
  else
    write("config.json", config_json(config_, torch_name(type), end_of_text));
  for (const std::string& stayed : files_.publish())
    say_warning(stayed);
}

}  // namespace sluice
