#pragma once

#include <filesystem>
#include <memory>

#include "models/gpt2/config.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// A model on disk: its shape and the paths of its weights and its tokenizer.
struct ModelSource {
  GPT2Config config;
  std::filesystem::path weights;  ///< for load_weights()
  std::filesystem::path folder;   ///< a model folder or a checkpoint
  std::filesystem::path run;      ///< the OUTPUT that a checkpoint belongs to; otherwise empty
};

/// Finds the model in a model folder, a checkpoint, or the OUTPUT of train_gpt2, which means its
/// model/ or, if there is none, its newest checkpoint. Throws Error (usage) if it is none of them,
/// (runtime) if a checkpoint is damaged.
ModelSource find_model(const std::filesystem::path& path);

/// Loads the tokenizer from the folder itself, else for a checkpoint from its run's model/ or
/// tokenizer/. Throws Error (usage) that says what is missing and what to do.
std::unique_ptr<Tokenizer> load_tokenizer(const ModelSource& source);

}  // namespace sluice
