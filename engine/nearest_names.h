#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Names for error messages: what somebody who wrote another name may have meant.

/// Returns how many letters have to be added, removed or changed (Levenshtein, 1966).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

/// Returns the `count` of `known` that are nearest to a name by this distance, the nearest first.
inline std::vector<std::string> nearest_names(std::string_view name, std::vector<std::string> known,
                                              std::size_t count) {
  std::ranges::stable_sort(known, {},
                           [&](const std::string& other) { return edit_distance(name, other); });
  if (known.size() > count) known.resize(count);
  return known;
}

}  // namespace sluice
