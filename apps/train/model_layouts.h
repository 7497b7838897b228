#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "optim/space/space_layout.h"

namespace sluice {

/// Computes the layouts of the shards of a model (all stages), and keeps them: a plan makes
/// hundreds of trainings of one model, and each needs the layouts of all shards. Thread-safe.
class ModelLayouts {
 public:
  using Shards = std::shared_ptr<const std::vector<SpaceLayout>>;

  /// Layout i is that of shard i of `shards`. They have names and offsets, but no tensors.
  Shards of(const GPT2Config& config, bool narrow_gradients, int shards) {
    const std::lock_guard lock(mutex_);
    for (const Entry& known : known_)
      if (known.narrow_gradients == narrow_gradients &&
          known.layouts->size() == static_cast<std::size_t>(shards) && known.config == config)
        return known.layouts;
    auto layouts = std::make_shared<std::vector<SpaceLayout>>();
    for (int shard = 0; shard < shards; ++shard) {
      GPT2 model(config, {.rank = shard, .size = shards});
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
    GPT2Config config;
    bool narrow_gradients;
    Shards layouts;
  };
  std::mutex mutex_;
  std::vector<Entry> known_;
};

}  // namespace sluice
