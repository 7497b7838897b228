#include "apps/train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace sluice {
namespace {

std::string bar(double fraction, int width) {
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * width);
  return fmt::format("[{:=<{}}{: <{}}]", "", full, "", width - full);
}

bool speaking = true;

constexpr const char* erase_line = "\r\x1b[K";

}  // namespace

void set_speaking(bool yes) {
  speaking = yes;
}

void say(const std::string& text) {
  if (!speaking) return;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  static_cast<void>(written && std::fflush(stdout) == 0);
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

StepPrinter::StepPrinter(std::int64_t first_step, std::int64_t steps, bool terminal)
    : first_step_(first_step), steps_(steps), terminal_(terminal) {}

void StepPrinter::step(const Line& line) {
  seconds_ += line.milliseconds / 1e3;
  const auto done = static_cast<double>(line.step - first_step_);
  const double left = static_cast<double>(steps_ - line.step) * seconds_ / std::max(done, 1.0);
  const auto width = fmt::formatted_size("{}", steps_);
  const std::string text = fmt::format(
      "step {:>{}}/{} | loss {:7.4f} | norm {:6.3f} | lr {:.2e} | {:5.0f} ms | {:>6} tok/s | {} "
      "| {} | eta {}",
      line.step, width, steps_, line.loss, line.norm, line.rate, line.milliseconds,
      format_count(line.tokens_per_second),
      line.mfu > 0 ? fmt::format("{:4.1f}% MFU", line.mfu * 100) : std::string("   - MFU"),
      format_bytes(line.memory), format_duration(left));
  if (terminal_) {
    const double fraction = static_cast<double>(line.step) / static_cast<double>(steps_);
    say(fmt::format("{}{} {}", erase_line, bar(fraction, 12), text));
    line_open_ = true;
  } else {
    say(fmt::format("{}\n", text));
  }
  if (line.step == steps_) end_line();
}

void StepPrinter::print(const std::string& text) {
  end_line();
  say(fmt::format("{}\n", text));
}

void StepPrinter::end_line() {
  if (line_open_) say("\n");
  line_open_ = false;
}

ProgressBar::ProgressBar(std::string label, double total, bool terminal)
    : label_(std::move(label)), total_(total), terminal_(terminal) {}

ProgressBar::~ProgressBar() {
  if (drawn_percent_ >= 0) std::fputs("\n", stderr);
}

void ProgressBar::advance(double amount) {
  done_ += amount;
  const double fraction = total_ > 0 ? done_ / total_ : 1;
  const int percent = static_cast<int>(fraction * 100);
  if (!terminal_ || percent == drawn_percent_) return;
  drawn_percent_ = percent;
  fmt::print(stderr, "{}{} {} {:3}%", erase_line, label_, bar(fraction, 40), percent);
}

bool is_terminal(int descriptor) {
  return isatty(descriptor) == 1;
}

}  // namespace sluice
