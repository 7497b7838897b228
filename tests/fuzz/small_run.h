#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint.h"
#include "models/decoder/decoder.h"
#include "tests/support/training/single_rank.h"

namespace sluice::fuzz {

/// A GPT-2 with one layer, two heads, width 4, 3 tokens and a context of 2.
struct SmallModel {
  explicit SmallModel(ParameterSpace::Use use);

  DecoderConfig config;
  std::unique_ptr<Decoder> model;
  std::unique_ptr<ParameterSpace> space;
};

/// Returns its model.safetensors; the next two return one of two shards, and that shard's names.
std::string small_model_file();
std::string small_shard(bool first);
std::vector<std::string> small_shard_names(bool first);

struct CheckpointFiles {
  std::string state, weights, optimizer;
};

/// A training run of the small model and the checkpoint that it has saved at step 3.
class SmallRun {
 public:
  SmallRun();
  ~SmallRun();

  const CheckpointFiles& files() const { return files_; }
  /// Loads the checkpoint with these files in place of its own.
  std::int64_t load(const CheckpointFiles& files);
  /// Saves what was loaded as another checkpoint, and loads that one.
  std::int64_t save_and_load(std::int64_t step);
  const ParameterSpace& space() const { return *small_.space; }

 private:
  std::int64_t load_from(const std::filesystem::path& folder);

  SmallModel small_{ParameterSpace::Use::training};
  std::unique_ptr<Optimizer> optimizer_;
  LossScaler scaler_{LossScaler::State{}};
  test::SingleRank rank_;
  CheckpointState state_;
  std::unique_ptr<nlohmann::json> run_;
  std::filesystem::path folder_;
  CheckpointFiles files_;
};

}  // namespace sluice::fuzz
