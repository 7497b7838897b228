#pragma once

#include <memory>

#include "apps/config/train_config.h"
#include "models/decoder/decoder.h"
#include "models/lora/frozen_weights.h"
#include "optim/space/parameter_space.h"

namespace sluice {

struct RunSetup;

/// Gives the model the low-rank adapters that --lora-rank or --adapter asks for. Throws Error
/// (usage) for targets, ranks and other options that do not go with them.
void resolve_adapters(const TrainConfig& options, DecoderConfig& config);

/// Checks the headers of the model's weights, if it has some. Adapters need a model with weights.
void check_model_weights(const RunSetup& setup);

/// Makes the weights of a model with adapters that are not trained, still zero: null without
/// adapters. `parts`: those of this rank.
std::unique_ptr<FrozenWeights> make_frozen(Decoder& model, const std::vector<DecoderPart>& parts,
                                           const DevicePtr& device, DType dtype);

/// Fills a training's weights from the model's folder and the adapters' folder. New adapters get
/// random values. `frozen`: what make_frozen() has made.
void load_start(const TrainConfig& options, const RunSetup& setup, FrozenWeights* frozen,
                ParameterSpace& space);

}  // namespace sluice
