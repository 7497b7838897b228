#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice {

/// Writes to stdout at once. A reader that has gone away must not end a training: the log file has
/// everything, so errors are ignored.
void say(const std::string& text);
/// Of several ranks only one speaks: false makes this process silent. For `main`.
void set_speaking(bool speaking);

/// Runs from when it was made.
class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// "1h37m", "4m05s", "12s"
std::string format_duration(double seconds);
/// "1.68M", "312k", "950"
std::string format_count(double value);
/// "11.0 GiB", "512 MiB"
std::string format_bytes(std::size_t bytes);

/// One aligned line per step. On a terminal the line is drawn over the previous one behind a bar;
/// elsewhere every line stays. Other output goes through `print`, which leaves the line whole.
class StepPrinter {
 public:
  struct Line {
    std::int64_t step = 0;  ///< from 1
    double loss = 0;
    double norm = 0;
    double rate = 0;
    double milliseconds = 0;
    double tokens_per_second = 0;
    double mfu = 0;  ///< 0: not known
    std::size_t memory = 0;
  };

  StepPrinter(std::int64_t first_step, std::int64_t steps, bool terminal);

  void step(const Line& line);
  void print(const std::string& text);

 private:
  void end_line();

  std::int64_t first_step_;
  std::int64_t steps_;
  bool terminal_;
  bool line_open_ = false;
  double seconds_ = 0;  ///< spent in steps, for the time that remains
};

/// A bar for work of a known size: drawn on a terminal, silent elsewhere.
class ProgressBar {
 public:
  ProgressBar(std::string label, double total, bool terminal);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(double amount);

 private:
  std::string label_;
  double total_;
  double done_ = 0;
  int drawn_percent_ = -1;
  bool terminal_;
};

bool is_terminal(int descriptor);

}  // namespace sluice
