#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice {

// What goes to stdout. Any thread may call these functions: each writes whole lines, and one that
// finds a live line on the terminal leaves that line whole above its own. A reader that has gone
// away must not end a training: the log file has everything, so errors are ignored. Texts may hold
// what strangers wrote: they pass through printable().

/// Writes at once. Silent with --quiet.
void say(const std::string& text);
/// The same, with --quiet too.
void say_always(const std::string& text);
/// Says what a model has written: its very bytes where stdout is no terminal.
void say_made(const std::string& text);
/// "warning      TEXT" on a line of its own, with --quiet too.
void say_warning(const std::string& text);

/// Draws `line`, which takes `columns` of the terminal and has no end, over the live line before
/// it. `kept` is what stays in its place, as a whole line, once other output follows. Neither
/// passes through printable(): they are the program's own, with its colours.
void say_live(const std::string& line, int columns, const std::string& kept);
/// Leaves what is kept of the live line, if there is one.
void end_live_line();

/// Of several ranks only one speaks: false makes this process silent. For `main`.
void set_speaking(bool speaking);
/// Only warnings and what is said always.
void set_quiet(bool quiet);
/// Treats stdout as no terminal: mpirun gives ranks one even where its own output goes to a file.
void forget_terminal();
/// Whether stdout is a terminal, one for live lines, and one for colours.
bool stdout_is_terminal();
bool stdout_redraws();
bool stdout_has_colours();

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
/// "[====    ]", with two columns more than `width`.
std::string format_bar(double fraction, int width);

/// A bar for work of a known size on stderr: drawn on a terminal, silent elsewhere.
class ProgressBar {
 public:
  ProgressBar(std::string label, double total);
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

}  // namespace sluice
