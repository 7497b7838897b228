#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice {

/// Column of a table: shows one figure of each row to people.
struct Column {
  std::string heading{};       ///< "": only programs see the figure
  int width = 0;               ///< 0: left-aligned, and as wide as its widest cell
  std::string pattern = "{}";  ///< of fmt; strings are shown as they are
  double unit = 1;             ///< factor from the figure to the column's unit
};
constexpr double in_mib = 1.0 / (1 << 20), in_gib = 1.0 / (1 << 30), in_ms = 1e3, in_percent = 100;

/// Figure of a report: programs read its value by the key, people read its column.
struct Figure {
  Figure(std::string named, const nlohmann::ordered_json& counted, Column shown = {});

  std::string key;                                      ///< "": only people see the figure
  std::shared_ptr<const nlohmann::ordered_json> value;  ///< shared, since it is incomplete here
  Column column;
};
using Figures = std::vector<Figure>;
Figures& operator+=(Figures& figures, const Figures& more);
nlohmann::ordered_json to_json(const Figures& figures);

/// Report that says the same twice: as lines to people, and as figures to programs.
struct Report {
  std::string text{};
  Figures figures{};

  /// Adds a line with a label, and the figures that it speaks of.
  void row(const std::string& label, const std::string& line, const Figures& more = {});
  /// Adds rows of the same columns: as lines under headings, below `above`, and as an array.
  void table(const std::string& key, const std::vector<Figures>& rows,
             const std::string& above = "");
  /// Adds another report, with a key as an object of its own.
  void append(const Report& other, const std::string& key = "");
};

}  // namespace sluice
