#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

/// Skips updates whose loss or gradient norm is far above that of the updates before. It decides by
/// numbers that all ranks share, and what it knows is part of a checkpoint, so that a resumed run
/// skips the same ones.
class SpikeGuard {
 public:
  struct Options {
    double loss = 0;           ///< the most standard deviations above the mean; 0: any
    double gradient_norm = 0;  ///< the same
    std::int64_t window = 128;
  };

  explicit SpikeGuard(const Options& options) : options_(options) {}

  bool active() const { return options_.loss > 0 || options_.gradient_norm > 0; }
  /// Why an update should be skipped, or "". Until as many as the window holds have been applied
  /// nothing is known, and only what is not finite is skipped.
  std::string judge(double loss, double gradient_norm) const;
  /// After an update that was applied.
  void keep(double loss, double gradient_norm);

  /// How much further in the data the run is than its steps say.
  std::int64_t skipped_batches() const { return skipped_batches_; }
  void skip_batches(std::int64_t more) { skipped_batches_ += more; }

  /// null where there is nothing to remember.
  nlohmann::json state() const;
  /// Throws nlohmann::json::exception where it is of another form.
  void restore(const nlohmann::json& state);

 private:
  Options options_;
  std::deque<double> losses_, norms_;  ///< of the updates applied last, oldest first
  std::int64_t skipped_batches_ = 0;
};

}  // namespace sluice
