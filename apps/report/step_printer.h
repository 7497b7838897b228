#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// Prints training steps on stdout. On a terminal the step is a live line that is redrawn at every
/// step and shows as many fields as fit; elsewhere some steps get a line each.
class StepPrinter {
 public:
  struct Options {
    std::int64_t first_step = 0;  ///< updates done before this start
    std::int64_t steps = 0;       ///< of the whole run
    bool fits = false;            ///< lines are cut to the width of a terminal
    bool terminal = false;        ///< lines are redrawn in place
    bool colours = false;
    /// Number of steps between lines that stay; the first and the last step also get one. None: no
    /// lines that stay on a terminal, elsewhere about 50 for a whole run.
    std::optional<std::int64_t> log_every{};
  };
  struct Line {
    std::int64_t step = 0;  ///< counts from 1
    double loss = 0;
    double norm = 0;
    double rate = 0;
    double milliseconds = 0;
    double tokens_per_second = 0;
    double mfu = 0;  ///< 0: unknown
    std::size_t memory = 0;
    std::string details{};  ///< extra text, shown if there is room
  };

  explicit StepPrinter(const Options& options);

  void step(const Line& line);
  /// Prints other output and leaves the live line intact.
  void print(const std::string& text);
  /// Prints the text that the model samples after `step` steps.
  void print_sample(std::int64_t step, const std::string& text);
  /// Ends the output: the last step gets its line if it has none.
  void finish();

 private:
  void draw(const Line& line, double seconds_left, bool stays);

  Options options_;
  std::int64_t every_ = 0;  ///< 0: no step has a line that stays
  double seconds_ = 0;      ///< time in steps so far, to estimate the remaining time
  std::string withheld_{};  ///< line of the last step if it was not printed
};

/// One part of a step's line.
struct StepField {
  std::string text;
  int rank = 0;  ///< priority: fields with the highest rank are dropped first
};

/// Returns all known fields of a step, in display order.
std::vector<StepField> fields_of(const StepPrinter::Line& line, std::int64_t steps,
                                 double seconds_left);

/// Joins the fields that fit into `columns`, chosen by rank; at least the beginning of the first.
std::string fitted(const std::vector<StepField>& fields, std::size_t columns);

}  // namespace sluice
