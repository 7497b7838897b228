#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "apps/cli/machine.h"
#include "apps/config/train_config.h"
#include "apps/data/dataset.h"
#include "apps/data/tokens/sampler.h"
#include "apps/train/model_layouts.h"
#include "apps/train/trainer.h"
#include "models/decoder/config.h"
#include "models/text/tokenizer.h"
#include "optim/schedule.h"

namespace sluice {

/// The options of a run after resolve(): files have been looked at, defaults filled in, and
/// contradictions refused.
struct RunSetup {
  DecoderConfig config;
  DeviceKind device = DeviceKind::cpu;
  Precision precision;
  std::filesystem::path model_folder;    ///< empty: random weights
  std::uint32_t base_checksum = 0;       ///< of the weights beside adapters; only runs take it
  std::shared_ptr<Tokenizer> tokenizer;  ///< null: token data of unknown origin
  bool can_sample = true;                ///< there is a tokenizer, or none was looked for yet
  std::string data_name;                 ///< for messages
  Dataset data;
  RateSchedule schedule;
  Trainer::Options trainer;
  std::shared_ptr<const PipelinePlan> pipeline;  ///< null: no pipeline
  std::shared_ptr<ModelLayouts> layouts = std::make_shared<ModelLayouts>();
  std::shared_ptr<BucketPlans> bucket_plans = std::make_shared<BucketPlans>();

  /// Returns what a plan of memory needs: the setup without data, texts and layouts.
  RunSetup without_data() const {
    RunSetup copy = *this;
    copy.data = {};
    copy.tokenizer = nullptr;
    copy.can_sample = true;
    copy.layouts = std::make_shared<ModelLayouts>();
    copy.bucket_plans = std::make_shared<BucketPlans>();
    return copy;
  }
};

RunSetup resolve(const TrainConfig& options);

/// Resolves again everything that depends on memory options; `options` may differ only in those.
/// If it throws, `setup` must be resolved again with other options before it is used.
void resolve_memory(const TrainConfig& options, RunSetup& setup);

/// Returns the order in which the run reads its training data.
SequenceSampler sampler_of(const TrainConfig& options, const RunSetup& setup);

/// Returns the validation batches: the first sequences of the validation data, as many as fill
/// --val-steps batches of --batch-size. They do not depend on how ranks divide the work.
EvaluationBatches validation_batches(const TrainConfig& options, const RunSetup& setup);

/// Returns true if --sequence-parallel can divide the tokens of a micro-batch of `rows` sequences.
bool divides_tokens(const TrainConfig& options, std::int64_t rows, std::int64_t seq_len);

/// Returns the bytes that a pipeline stage sends to the next stage for `micro_batch` sequences.
std::size_t message_bytes(const RunSetup& setup, std::int64_t micro_batch);

/// Does what resolve() does, but looks at no data; for planning. `gpu` and `capability` (ten times
/// major plus minor) describe the device that is planned for.
RunSetup resolve_shape(const TrainConfig& options, bool gpu, int capability,
                       const std::string& device_name);
/// Returns true if the options alone decide the model's shape.
bool knows_shape(const TrainConfig& options);

}  // namespace sluice
