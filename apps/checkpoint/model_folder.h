#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/io/replaced_folder.h"
#include "engine/io/stored_tensor.h"
#include "models/decoder/config.h"
#include "models/decoder/decoder.h"
#include "models/text/tokenizer.h"
#include "optim/offload/weight_ring.h"
#include "optim/space/parameter_space.h"

namespace sluice {

/// A model on disk: its shape and the paths of its weights and its tokenizer.
struct ModelSource {
  DecoderConfig config;
  std::filesystem::path weights;    ///< for load_weights()
  std::filesystem::path folder;     ///< a model folder or a checkpoint
  std::filesystem::path run;        ///< the OUTPUT that a checkpoint belongs to; otherwise empty
  std::filesystem::path adapter{};  ///< added to the weights when they are loaded; empty: none
};

/// Finds the model in a model folder, a checkpoint, or the OUTPUT of train_gpt2, which means its
/// model/ or, if there is none, its newest checkpoint. Throws Error (usage) if it is none of them,
/// (runtime) if a checkpoint is damaged. A folder of adapters is found with the model that it
/// names. `adapter`: a folder of adapters for the model; empty: none.
ModelSource find_model(const std::filesystem::path& path,
                       const std::filesystem::path& adapter = {});

/// Loads the tokenizer from the folder itself, else for a checkpoint from its run's model/ or
/// tokenizer/. Throws Error (usage) that says what is missing and what to do.
std::unique_ptr<Tokenizer> load_tokenizer(const ModelSource& source);
/// Loads a folder's tokenizer where none is needed: none if it has none, or, with a warning, one
/// that this program does not read.
std::unique_ptr<Tokenizer> find_tokenizer(const std::filesystem::path& folder);
/// The same, from the places where load_tokenizer() looks.
std::unique_ptr<Tokenizer> find_tokenizer(const ModelSource& source);
/// The same for what `load` returns.
std::unique_ptr<Tokenizer> without_fault(const std::function<std::unique_ptr<Tokenizer>()>& load);

/// A model with its weights.
struct LoadedModel {
  std::unique_ptr<Decoder> model;
  std::unique_ptr<ParameterSpace> space;
  std::unique_ptr<WeightRing> ring{};  ///< null if all weights are on the device
};

/// The highest blocks, whose weights rest in host memory and visit the device when they are used.
struct VisitingBlocks {
  std::int64_t host_blocks = 0;
  HostMemory host{};
};

/// Makes a model whose weights are still zero.
LoadedModel make_model(const DecoderConfig& config, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, const VisitingBlocks& visiting = {});

/// Keeps only some positions of a model's context. Throws Error (usage) if it has fewer.
void shorten_context(DecoderConfig& config, std::optional<std::int64_t> context);

/// Throws Error (usage), with a hint at the right folder, unless `folder` holds a config.json.
void require_model_folder(const std::filesystem::path& folder);

/// Loads what find_model() has found, or a Hugging Face folder. `context` shortens the model's
/// context.
LoadedModel load_model(const ModelSource& source, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, std::optional<std::int64_t> context = {},
                       const VisitingBlocks& visiting = {});
LoadedModel load_model(const std::filesystem::path& folder, const DevicePtr& device, DType dtype,
                       ParameterSpace::Use use, std::optional<std::int64_t> context = {});

/// Refuses an --output for a model if it holds files of a model that `program` did not write, which
/// gives its name to save_weights(). Throws Error (usage).
void require_own_model(const std::string& program, const std::filesystem::path& folder);

/// A small file that is exported with a model; an empty name means none.
struct ModelNote {
  std::string name{}, text{};
};

/// A model that is being written to a folder: config.json, model.safetensors, the tokenizer's files
/// and the note; of a model with adapters these alone, in PEFT's form. They replace all files of a
/// model in the folder: after a crash it holds the old ones, the new ones or, if the file system
/// cannot exchange folders, no config.json. Other files stay. Hugging Face can open the folder.
class ModelExport {
 public:
  ModelExport(const std::filesystem::path& folder, const DecoderConfig& config,
              ModelNote note = {});

  /// Returns the file to write the weights to, before publish().
  std::filesystem::path weights() const;
  /// Writes the other files and puts all in their place. `type` is that of the weights; `base` is
  /// the source model's folder: its generation_config.json is copied, and adapters name it.
  void publish(const Tokenizer* tokenizer, StoredType type, const std::filesystem::path& base = {});

 private:
  DecoderConfig config_;
  ModelNote note_;
  ReplacedFolder files_;
};

}  // namespace sluice
