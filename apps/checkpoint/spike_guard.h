#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

/// Skips updates whose loss or gradient norm is far above that of previous updates. It decides by
/// numbers that all ranks share, and its window is saved in checkpoints, so that a resumed run
/// skips the same updates.
class SpikeGuard {
 public:
  struct Options {
    double loss = 0;           ///< limit in standard deviations above the mean; 0: none
    double gradient_norm = 0;  ///< likewise
    std::int64_t window = 128;
  };

  explicit SpikeGuard(const Options& options) : options_(options) {}

  bool active() const { return options_.loss > 0 || options_.gradient_norm > 0; }
  /// Returns why an update should be skipped, or "". Until `window` updates have been applied, only
  /// values that are not finite are skipped.
  std::string reason_to_skip(double loss, double gradient_norm) const;
  /// Records the loss and the norm of an update that was applied.
  void keep(double loss, double gradient_norm);

  /// Batches of the data passed over, beyond what the step count says.
  std::int64_t skipped_batches() const { return skipped_batches_; }
  void skip_batches(std::int64_t more) { skipped_batches_ += more; }

  /// Returns null if there is nothing to remember.
  nlohmann::json state() const;
  /// Throws nlohmann::json::exception if it has another form.
  void restore(const nlohmann::json& state);

 private:
  Options options_;
  std::deque<double> losses_, norms_;  ///< values of the last updates applied, oldest first
  std::int64_t skipped_batches_ = 0;
};

}  // namespace sluice
