#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "apps/train/dataset.h"
#include "apps/train/options.h"
#include "apps/train/trainer.h"
#include "models/gpt2/config.h"
#include "models/text/tokenizer.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace sluice {

/// What a run's options come to once files were looked at and defaults filled in; every
/// contradiction among them has been refused.
struct RunSetup {
  GPT2Config config;
  DType dtype = DType::f32;
  std::filesystem::path model_folder;    ///< empty: random weights
  std::unique_ptr<Tokenizer> tokenizer;  ///< none: token data of unknown origin
  std::filesystem::path data_path;
  Dataset data;
  Schedule schedule;
  Trainer::Options trainer;
};

RunSetup resolve(const TrainOptions& options);

std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& options, ParameterSpace& space);

/// The bytes that training will have in use at its peak, counted by running one update of the same
/// code on the meta device.
std::size_t planned_peak(const TrainOptions& options, const RunSetup& setup);

}  // namespace sluice
