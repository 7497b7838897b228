#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "apps/train/dataset.h"
#include "apps/train/machine.h"
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
  DeviceKind device = DeviceKind::cpu;
  Precision precision;
  std::filesystem::path model_folder;    ///< empty: random weights
  std::unique_ptr<Tokenizer> tokenizer;  ///< none: token data of unknown origin
  std::filesystem::path data_path;
  Dataset data;
  Schedule schedule;
  Trainer::Options trainer;
};

RunSetup resolve(const TrainOptions& options);

std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& options, ParameterSpace& space);

/// What training will take, counted by running two updates, a validation and the beginning of a
/// sample of the same code on the meta device.
struct MemoryPlan {
  std::size_t peak = 0;        ///< bytes in use at one time
  std::size_t high_water = 0;  ///< the end of the highest block: what the device must back
};
MemoryPlan plan_memory(const TrainOptions& options, const RunSetup& setup);

/// The device of a run. A GPU is asked for what the plan says and a little for what it could not
/// foresee, once; on the CPU addresses cost nothing.
DevicePtr open_device(const RunSetup& setup, const MemoryPlan& plan);

}  // namespace sluice
