#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command_line.h"
#include "bench/kernels/calibration.h"
#include "bench/kernels/check.h"

namespace sluice::bench {

/// One measured case.
struct Row {
  std::string op, variant, shape, dimensions, dtype;
  bool cold = false;
  Timing timing{};
  double bytes = 0;
  double flops = 0;
  Ceiling ceiling = Ceiling::copy;
  double fraction = 0;   ///< fraction of that ceiling
  Goal goal{};           ///< 0: no goal, or not on this device
  double predicted = 0;  ///< milliseconds; 0: not asked for, or not known
  std::optional<Deviation> deviation{};
  std::optional<double> times_saved{};  ///< median divided by the saved run's median
  bool slower = false;                  ///< slower than saved, beyond the threshold

  double bytes_per_second() const { return bytes / timing.median * 1e3; }
  double flops_per_second() const { return flops / timing.median * 1e3; }
  /// Identifies the same case in another run.
  std::string key() const;
};

struct Machine {
  std::string device, driver;
  int threads = 0;
};

/// The columns that a table has beside the measured ones.
struct Columns {
  bool predicted = false, compared = false;
};
std::string table_head(const Columns& columns);
std::string table_line(const Row& row, const Columns& columns);

/// The table of rows that were not measured.
std::string prediction_head();
std::string prediction_line(const Row& row);

nlohmann::ordered_json to_json(const Machine& machine, Calibration& calibration,
                               const std::vector<Row>& rows);
std::string to_csv(const std::vector<Row>& rows);

/// Reads medians by Row::key from a file that --json wrote. Throws Error (usage) for other files.
std::map<std::string, double> saved_medians(const std::string& path);

/// Declares --json, which replaces only figures of these programs: an object whose first member is
/// "program".
void add_json_output(CommandLine& line, std::string& value, const std::string& help);
/// Declares --csv, which replaces only a table with the columns of to_csv().
void add_csv_output(CommandLine& line, std::string& value, const std::string& help);

/// Throws Error if the file cannot be written; creates it if it does not exist.
void require_writable(const std::string& path);
void write_file(const std::string& path, const std::string& text);

}  // namespace sluice::bench
