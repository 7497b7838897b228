#pragma once

#include <filesystem>
#include <limits>

#include "apps/train/model_folder.h"
#include "parallel/communicator.h"

namespace sluice {

/// The model with the lowest validation loss so far: a folder, beside whose weights
/// `validation.json` tells the step and the loss, so that a run that goes on knows them. The two
/// change together.
class BestModel {
 public:
  /// The first rank reads what the folder holds; the others learn it from `ranks`.
  BestModel(std::filesystem::path folder, Communicator& ranks);

  const std::filesystem::path& folder() const { return folder_; }
  /// Returns whether the loss is lower than all before it, and remembers it if so.
  bool improves(double loss);
  /// validation.json, for the export of the model that improved last.
  ModelNote record(std::int64_t step) const;

 private:
  std::filesystem::path folder_;
  double loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace sluice
