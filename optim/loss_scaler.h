#pragma once

#include <cstdint>

namespace sluice {

/// The dynamic loss scale of fp16 training, with the rules of PyTorch's GradScaler: the scale
/// halves after an update that overflowed, and doubles after 2000 updates in a row that did not.
class LossScaler {
 public:
  static constexpr double growth = 2;
  static constexpr double backoff = 0.5;
  static constexpr std::int64_t growth_interval = 2000;

  struct State {
    double scale = 65536;
    std::int64_t good_updates = 0;  ///< updates without overflow since the scale last changed
  };

  /// Turns loss scaling off: the scale is always 1.
  LossScaler() : enabled_(false), state_{.scale = 1} {}
  explicit LossScaler(const State& state) : enabled_(true), state_(state) {}

  bool enabled() const { return enabled_; }
  double scale() const { return state_.scale; }
  const State& state() const { return state_; }

  /// Adjusts the scale after an update. `applied`: the gradients were finite and it was applied.
  void update(bool applied) {
    if (!enabled_) return;
    if (!applied) {
      state_ = {.scale = state_.scale * backoff};
    } else if (++state_.good_updates == growth_interval) {
      // As in GradScaler, the scale stays as it is where growth would take it beyond fp32.
      const double larger = state_.scale * growth;
      state_ = {.scale = larger <= 3.4028234663852886e38 ? larger : state_.scale};
    }
  }

 private:
  bool enabled_;
  State state_;
};

}  // namespace sluice
