#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// What of a training's steps appears on stdout. On a terminal the step is a live line, which is
/// drawn over at every step and has as much on it as fits; elsewhere some steps have a line each.
class StepPrinter {
 public:
  struct Options {
    std::int64_t first_step = 0;  ///< updates done before
    std::int64_t steps = 0;       ///< of the whole run
    bool fits = false;            ///< lines are cut to the width of a terminal
    bool terminal = false;        ///< and drawn over
    bool colours = false;
    /// A line that stays every so many steps, and for the first and the last one. None: on a
    /// terminal no step has one; elsewhere as many do as make 50 of a whole run.
    std::optional<std::int64_t> log_every{};
  };
  struct Line {
    std::int64_t step = 0;  ///< from 1
    double loss = 0;
    double norm = 0;
    double rate = 0;
    double milliseconds = 0;
    double tokens_per_second = 0;
    double mfu = 0;  ///< 0: not known
    std::size_t memory = 0;
    std::string details{};  ///< more, where there is room
  };

  explicit StepPrinter(const Options& options);

  void step(const Line& line);
  /// Other output; leaves the live line whole.
  void print(const std::string& text);
  /// What the model writes after `step` steps.
  void print_sample(std::int64_t step, const std::string& text);
  /// No step follows: the last one gets its line if it has none.
  void finish();

 private:
  void draw(const Line& line, double seconds_left, bool stays);

  Options options_;
  std::int64_t every_ = 0;  ///< 0: no step has a line that stays
  double seconds_ = 0;      ///< spent in steps, for the time that remains
  std::string withheld_{};  ///< the line of the last step, where it was not printed
};

/// One part of a step's line.
struct StepField {
  std::string text;
  int rank = 0;  ///< 0: the last to be left out
};

/// All that is known of a step, in the order in which it is read.
std::vector<StepField> fields_of(const StepPrinter::Line& line, std::int64_t steps,
                                 double seconds_left);

/// The fields that fit into so many columns together, by rank; at least the beginning of the first.
std::string fitted(const std::vector<StepField>& fields, std::size_t columns);

}  // namespace sluice
