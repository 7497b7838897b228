#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace sluice {

/// The saves that a checkpoint descends from. The saves in a run's folder are numbered from 1 in
/// the order in which they were made, across all processes that trained there. A run that goes back
/// to step 10 and saves step 12 makes a later save than the save of step 20 that it abandons. The
/// numbers of the ancestors and of the checkpoint itself (the last) are stored as ranges: a run
/// that went back from save 5 to save 2 writes saves 6 and 7 with the lineage [1, 2], [6, 7]. The
/// lineage also records which of these saves --resume PATH has named.
class Lineage {
 public:
  struct Stretch {
    std::int64_t first = 0, last = 0;
  };

  /// Returns the number of the checkpoint's own save; 0 if none is recorded.
  std::int64_t save() const { return stretches_.empty() ? 0 : stretches_.back().last; }
  /// Returns true if `save` is in the lineage.
  bool holds(std::int64_t save) const;
  /// Returns true if --resume PATH has named `save`.
  bool named(std::int64_t save) const;
  const std::vector<std::int64_t>& named() const { return named_; }
  /// Records that --resume PATH has named `save`, if it is in the lineage.
  void name(std::int64_t save);
  /// Appends the next save.
  void add(std::int64_t save);

  /// Returns JSON such as {"saves": [[1, 2], [6, 7]], "named": [2]}.
  nlohmann::json to_json() const;
  /// Throws nlohmann::json::exception, or std::out_of_range if the numbers do not increase or if a
  /// named save is not in the lineage.
  static Lineage from_json(const nlohmann::json& json);

 private:
  std::vector<Stretch> stretches_;
  std::vector<std::int64_t> named_;
};

}  // namespace sluice
