#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

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
  double fraction = 0;  ///< of that ceiling
  Goal goal{};          ///< 0: none, or not on this device
  std::optional<Deviation> deviation{};
  std::optional<double> times_saved{};  ///< the median over that of the saved run
  bool slower = false;                  ///< beyond the threshold

  double bytes_per_second() const { return bytes / timing.median * 1e3; }
  double flops_per_second() const { return flops / timing.median * 1e3; }
  /// What makes it the same case in another run.
  std::string key() const;
};

struct Machine {
  std::string device, driver;
  int threads = 0;
};

std::string table_head(bool compared);
std::string table_line(const Row& row, bool compared);

nlohmann::ordered_json to_json(const Machine& machine, Calibration& calibration,
                               const std::vector<Row>& rows);
std::string to_csv(const std::vector<Row>& rows);

/// The medians of a file that --json wrote, by Row::key. Throws Error (usage) where it is not one.
std::map<std::string, double> saved_medians(const std::string& path);

/// Throws Error where the file cannot be written; it is made, if it was not there.
void require_writable(const std::string& path);
void write_file(const std::string& path, const std::string& text);

}  // namespace sluice::bench
