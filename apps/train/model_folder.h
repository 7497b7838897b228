#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/train/model_source.h"
#include "engine/io/stored_tensor.h"
#include "models/gpt2/gpt2.h"
#include "models/text/tokenizer.h"
#include "optim/parameter_space.h"

namespace sluice {

/// A model with its weights.
struct LoadedModel {
  std::unique_ptr<GPT2> model;
  std::unique_ptr<ParameterSpace> space;
};

/// Refuses (usage) what is no folder with a config.json, and says what is meant.
void require_model_folder(const std::filesystem::path& folder);

/// Reads what find_model() has found, or opens a Hugging Face folder. `context` shortens the
/// model's.
LoadedModel load_model(const ModelSource& source, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, std::optional<std::int64_t> context = {});
LoadedModel load_model(const std::filesystem::path& folder, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, std::optional<std::int64_t> context = {});

/// A small file that belongs to a model, if it has a name.
struct ModelNote {
  std::string name{}, text{};
};

/// Writes config.json, model.safetensors, the tokenizer's files and the note, in the place of all
/// files of the model that the folder holds: after a crash at any moment it holds the old ones, the
/// new ones or, where the file system cannot exchange folders, no config.json. Other files stay.
/// Hugging Face opens the folder. `save` writes the weights to a file.
void export_model(const std::filesystem::path& folder, const GPT2Config& config,
                  const Tokenizer* tokenizer, StoredType type,
                  const std::function<void(const std::filesystem::path&)>& save,
                  const ModelNote& note = {});

}  // namespace sluice
