#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace sluice {

/// Which saves a checkpoint descends from. The saves of a run's folder are numbered from 1, in the
/// order in which they were made and across all processes that trained there; a run that goes back
/// to step 10 and saves step 12 makes a later save than that of step 20 which it abandons. The
/// numbers of a checkpoint's ancestors and its own, which is the last, are kept as stretches: a run
/// that went back from save 5 to save 2 writes saves 6 and 7 with the lineage [1, 2], [6, 7]. It
/// also knows which of them --resume PATH has named.
class Lineage {
 public:
  struct Stretch {
    std::int64_t first = 0, last = 0;
  };

  /// The number of the save itself; 0: none is recorded.
  std::int64_t save() const { return stretches_.empty() ? 0 : stretches_.back().last; }
  /// Whether `save` is one of them.
  bool holds(std::int64_t save) const;
  /// Whether --resume PATH has named that save.
  bool named(std::int64_t save) const;
  const std::vector<std::int64_t>& named() const { return named_; }
  /// Notes that it has named that save, if it is one of these.
  void name(std::int64_t save);
  /// Adds the next save.
  void add(std::int64_t save);

  /// {"saves": [[1, 2], [6, 7]], "named": [2]}
  nlohmann::json to_json() const;
  /// Throws nlohmann::json::exception, or std::out_of_range where the numbers do not
  /// increase or a save is named that is none of them.
  static Lineage from_json(const nlohmann::json& json);

 private:
  std::vector<Stretch> stretches_;
  std::vector<std::int64_t> named_;
};

}  // namespace sluice
