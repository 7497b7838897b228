#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"
#include "optim/space/space_layout.h"
#include "parallel/data_parallel/bucket_plan.h"

namespace sluice {

/// Computes the layouts of the shards of a model (all stages), and keeps them: a plan makes
/// hundreds of trainings of one model, and each needs the layouts of all shards. Thread-safe.
class ModelLayouts {
 public:
  using Shards = std::shared_ptr<const std::vector<SpaceLayout>>;

  /// Layout i is that of shard i of `shards`. They have names and offsets, but no tensors.
  Shards of(const DecoderConfig& config, bool narrow_gradients, int shards) {
    const std::lock_guard lock(mutex_);
    for (const Entry& known : known_)
      if (known.narrow_gradients == narrow_gradients &&
          known.layouts->size() == static_cast<std::size_t>(shards) && known.config == config)
        return known.layouts;
    auto layouts = std::make_shared<std::vector<SpaceLayout>>();
    for (int shard = 0; shard < shards; ++shard) {
      Decoder model(config, {.rank = shard, .size = shards});
      std::vector<Parameter> parameters = model.parameters();
      for (Parameter& parameter : parameters)
        parameter.tensor = nullptr;
      layouts->emplace_back(parameters, LayoutOptions{.narrow_gradients = narrow_gradients});
    }
    known_.push_back({config, narrow_gradients, layouts});
    return layouts;
  }

 private:
  struct Entry {
    DecoderConfig config;
    bool narrow_gradients;
    Shards layouts;
  };
  std::mutex mutex_;
  std::vector<Entry> known_;
};

/// Keeps the bucket plans of the ranks that were looked at last: a plan makes many trainings of the
/// same rank, and to divide buckets between thousands of replicas is slow. Thread-safe.
class BucketPlans {
 public:
  struct Key {
    int stage = 0, shard = 0;
    bool narrow_gradients = false;
    BucketPlan::Options options{};

    friend bool operator==(const Key&, const Key&) = default;
  };

  /// `parameters` are those of the key's stage and shard; `like`: those of the first shard if all
  /// cut alike (BucketPlan), else empty.
  std::shared_ptr<const BucketPlan> of(const Key& key, const std::vector<Parameter>& parameters,
                                       const std::vector<Parameter>& like) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, plan] : known_)
      if (known == key) return plan;
    const SpaceLayout layout(parameters, {.narrow_gradients = key.narrow_gradients});
    std::optional<SpaceLayout> first;
    if (!like.empty()) first.emplace(like, LayoutOptions{.narrow_gradients = key.narrow_gradients});
    known_.emplace_back(
        key, std::make_shared<const BucketPlan>(layout, key.options, first ? &*first : nullptr));
    if (known_.size() > most) known_.pop_front();
    return known_.back().second;
  }

 private:
  static constexpr std::size_t most = 2;  ///< the first and the last stage
  std::mutex mutex_;
  std::deque<std::pair<Key, std::shared_ptr<const BucketPlan>>> known_;
};

}  // namespace sluice
