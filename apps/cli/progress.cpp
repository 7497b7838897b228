#include "apps/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <utility>

#include "apps/cli/terminal.h"
#include "engine/io/utf8.h"

namespace sluice {
namespace {

/// The state of this process's output, and the live line that is on the terminal.
struct Output {
  std::mutex mutex;
  bool speaking = true, quiet = false, terminal = true;
  int live_columns = 0;  ///< 0: there is no live line
  int error = 0;         ///< the first of stdout
  std::string kept{};
};

Output& output() {
  static Output one;
  return one;
}

/// Expects the lock.
void write(const std::string& text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if ((!written || std::fflush(stdout) != 0) && output().error == 0) output().error = errno;
}

/// Returns the codes that erase an unfinished line of that many columns. If the terminal has become
/// narrower since it was drawn, terminals that rewrap their text show it on several rows.
std::string erased(int drawn_columns, int descriptor) {
  const int rows_above = std::max(0, (drawn_columns - 1) / std::max(1, columns_of(descriptor)));
  if (rows_above == 0) return "\r\x1b[K";
  return fmt::format("\r\x1b[{}A\x1b[J", rows_above);
}

std::string settled(Output& out) {
  if (out.live_columns == 0) return {};
  return erased(std::exchange(out.live_columns, 0), STDOUT_FILENO) + out.kept + "\n";
}

void say_in_turn(const std::string& text, bool always) {
  Output& out = output();
  const std::scoped_lock lock(out.mutex);
  if (out.speaking && (always || !out.quiet)) write(settled(out) + text);
}

}  // namespace

void say(const std::string& text) {
  say_in_turn(printable(text), false);
}

void say_always(const std::string& text) {
  say_in_turn(printable(text), true);
}

void say_made(const std::string& text) {
  // Unlike elsewhere, ranks under mpirun count: it may pass their output to a terminal.
  say_in_turn(is_terminal(STDOUT_FILENO) ? printable(text) : text, false);
}

void say_note(const std::string& text) {
  end_live_line();
  Output& out = output();
  const std::scoped_lock lock(out.mutex);
  if (out.speaking)
    fmt::print(stderr, "{}: note: {}\n", program_invocation_short_name, printable_line(text));
}

void say_warning(const std::string& text) {
  const std::string word = fmt::format("{:<12}", "warning");
  say_in_turn(fmt::format("{} {}\n", stdout_has_colours() ? in_colour(Colour::yellow, word) : word,
                          printable(text)),
              true);
}

void say_live(const std::string& line, int columns, const std::string& kept) {
  Output& out = output();
  const std::scoped_lock lock(out.mutex);
  if (!out.speaking || out.quiet) return;
  write(erased(out.live_columns, STDOUT_FILENO) + line);
  out.live_columns = columns;
  out.kept = kept;
}

void end_live_line() {
  say("");
}

int finish_stdout() {
  Output& out = output();
  const std::scoped_lock lock(out.mutex);
  write("");
  // Network file systems tell of a full disk when a file is closed.
  const int copy = dup(STDOUT_FILENO);
  if (copy >= 0 && close(copy) != 0 && out.error == 0) out.error = errno;
  // Output that bypassed say() recorded no errno.
  if (std::ferror(stdout) != 0 && out.error == 0) out.error = EIO;
  return out.error;
}

void set_speaking(bool yes) {
  output().speaking = yes;
}

void set_quiet(bool yes) {
  output().quiet = yes;
}

void forget_terminal() {
  output().terminal = false;
}

bool stdout_is_terminal() {
  return output().terminal && is_terminal(STDOUT_FILENO);
}

bool stdout_redraws() {
  return output().terminal && can_redraw(STDOUT_FILENO);
}

bool stdout_has_colours() {
  return output().terminal && has_colours(STDOUT_FILENO);
}

std::string format_duration(double seconds) {
  const std::int64_t total = std::lround(std::max(0.0, seconds));
  if (total >= 3600) return fmt::format("{}h{:02}m", total / 3600, total / 60 % 60);
  if (total >= 60) return fmt::format("{}m{:02}s", total / 60, total % 60);
  return fmt::format("{}s", total);
}

std::string format_count(double value) {
  if (value >= 1e9) return fmt::format("{:.2f}G", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string format_bytes(std::size_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib >= 1024 ? fmt::format("{:.2f} GiB", mib / 1024) : fmt::format("{:.0f} MiB", mib);
}

std::string format_bar(double fraction, int width) {
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * width);
  return fmt::format("[{:=<{}}{: <{}}]", "", full, "", width - full);
}

ProgressBar::ProgressBar(std::string label, double total)
    : label_(printable_line(label)), total_(total), terminal_(can_redraw(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() {
  if (drawn_percent_ >= 0) std::fputs("\n", stderr);
}

void ProgressBar::advance(double amount) {
  done_ += amount;
  const double fraction = total_ > 0 ? done_ / total_ : 1;
  const int percent = static_cast<int>(fraction * 100);
  if (!terminal_ || percent == drawn_percent_ || since_.milliseconds() < 1000) return;
  drawn_percent_ = percent;
  const int beside = static_cast<int>(label_.size()) + 10;  // brackets, blanks, percent
  const int width = std::clamp(columns_of(STDERR_FILENO) - beside, 0, 40);
  fmt::print(stderr, "\r\x1b[K{} {} {:3}%", label_, format_bar(fraction, width), percent);
}

}  // namespace sluice
