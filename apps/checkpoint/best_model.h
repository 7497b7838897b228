#pragma once

#include <filesystem>
#include <limits>

#include "apps/checkpoint/model_folder.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// The model with the lowest validation loss so far, in a folder of its own. `validation.json`
/// beside the weights records the step and the loss, so that a resumed run knows them. Weights and
/// record are replaced together.
class BestModel {
 public:
  /// Rank 0 reads what the folder holds and shares it with the others over `ranks`.
  BestModel(std::filesystem::path folder, Communicator& ranks);

  const std::filesystem::path& folder() const { return folder_; }
  /// Returns true if the loss is lower than all before it, and then remembers it.
  bool improves(double loss);
  /// Returns validation.json for the export of the model that improved last.
  ModelNote record(std::int64_t step) const;

 private:
  std::filesystem::path folder_;
  double loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace sluice
