#pragma once

#include <filesystem>
#include <memory>

#include "models/gpt2/config.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// A model on disk: its shape, and where its weights and its tokenizer are.
struct ModelSource {
  GPT2Config config;
  std::filesystem::path weights;  ///< for load_weights()
  std::filesystem::path folder;   ///< a model folder or a checkpoint
  std::filesystem::path run;      ///< of a checkpoint: the OUTPUT that it belongs to; else empty
};

/// Looks at a folder: a model folder, a checkpoint, or the OUTPUT of train_gpt2, which stands for
/// its model/ or, where there is none, for its newest checkpoint. Throws Error (usage) where it is
/// none of them, (runtime) where a checkpoint is damaged.
ModelSource find_model(const std::filesystem::path& path);

/// Its tokenizer: that of the model folder; of a checkpoint that of the run's model/, else of the
/// run's tokenizer/. Throws Error (usage) that says what is missing and what to do.
std::unique_ptr<Tokenizer> load_tokenizer(const ModelSource& source);

}  // namespace sluice
