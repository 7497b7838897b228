#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice {

// Output to stdout. Any thread may call these functions. Each writes whole lines; if there is a
// live line on the terminal, its final form is left above them. Write errors end nothing: a reader
// that has gone away must not end a training, whose log file has everything. run_program() reports
// them at the end. Texts may hold what
// strangers wrote, so they pass through printable().

/// Writes at once. Silent with --quiet.
void say(const std::string& text);
/// Same, but with --quiet too.
void say_always(const std::string& text);
/// Prints text that a model has generated; byte for byte if stdout is not a terminal.
void say_made(const std::string& text);
/// Prints "PROGRAM: note: TEXT" on standard error, beside what a program has to say there.
void say_note(const std::string& text);
/// Prints "warning      TEXT" on a line of its own, with --quiet too.
void say_warning(const std::string& text);

/// Draws `line`, which has no newline and takes `columns` columns, over the previous live line.
/// `kept` replaces it, as a whole line, once other output follows. Neither passes through
/// printable(): both come from the program itself and may hold colour codes.
void say_live(const std::string& line, int columns, const std::string& kept);
/// Replaces the live line, if there is one, by its `kept` text.
void end_live_line();

/// Hands everything that was printed to the system. Returns the first error of this and of all
/// writing before, as errno has it; 0: none.
int finish_stdout();

/// false silences this process: of several ranks only one prints. For a program's start.
void set_speaking(bool speaking);
/// Prints only warnings and what say_always() is given.
void set_quiet(bool quiet);
/// Treats stdout as no terminal: mpirun gives ranks one even if its own output goes to a file.
void forget_terminal();
/// Return true if stdout is a terminal, one that can redraw lines, and one with colours.
bool stdout_is_terminal();
bool stdout_redraws();
bool stdout_has_colours();

/// A stopwatch that runs from its construction.
class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Returns "1h37m", "4m05s" or "12s".
std::string format_duration(double seconds);
/// Returns "1.68M", "312.0k" or "950".
std::string format_count(double value);
/// Returns "11.00 GiB" or "512 MiB".
std::string format_bytes(std::size_t bytes);
/// Returns "[====    ]", which is two columns wider than `width`.
std::string format_bar(double fraction, int width);

/// A progress bar on stderr for work of a known size; drawn on a terminal only, and only if the
/// work takes longer than a second.
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
  Stopwatch since_;
  bool terminal_;
};

}  // namespace sluice
