#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "apps/train/dataset.h"
#include "apps/train/machine.h"
#include "apps/train/options.h"
#include "apps/train/sampler.h"
#include "apps/train/trainer.h"
#include "models/gpt2/config.h"
#include "models/text/tokenizer.h"
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
  bool can_sample = true;                ///< there is a tokenizer, or nobody has looked for one
  std::string data_name;                 ///< for messages
  Dataset data;
  RateSchedule schedule;
  Trainer::Options trainer;
  std::shared_ptr<const PipelinePlan> pipeline;  ///< none: every rank has all of the model
};

RunSetup resolve(const TrainOptions& options);

/// Decides again, for options that differ in how memory is used alone, what follows from them.
/// Where it throws `setup` has to be given others.
void resolve_memory(const TrainOptions& options, RunSetup& setup);

/// In which order the run reads its training data.
SequenceSampler sampler_of(const TrainOptions& options, const RunSetup& setup);

/// What a run validates on, the same in every layout: the first sequences of the validation data,
/// as many as --val-steps batches of --batch-size have.
EvaluationBatches validation_batches(const TrainOptions& options, const RunSetup& setup);

/// Whether --sequence-parallel can divide the tokens of a micro-batch of so many sequences.
bool divides_tokens(const TrainOptions& options, std::int64_t rows, std::int64_t seq_len);

/// A sentence on a learning rate that is unusual for the optimizer, which is nevertheless taken; ""
/// if it is not.
std::string unusual_rate(const TrainOptions& options, double rate);

/// What one stage of a pipeline hands to the next for a micro-batch of so many sequences.
std::size_t message_bytes(const RunSetup& setup, std::int64_t micro_batch);

/// The same without looking at any data, for planning alone: `gpu` and `capability` (ten times
/// major plus minor) are those of the device planned for.
RunSetup resolve_shape(const TrainOptions& options, bool gpu, int capability,
                       const std::string& device_name);
/// Whether the shape of the model follows from the options alone.
bool knows_shape(const TrainOptions& options);

}  // namespace sluice
