#include "apps/report/step_printer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "apps/cli/progress.h"
#include "apps/cli/terminal.h"

namespace sluice {
namespace {

constexpr std::string_view between = " | ";
constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

/// Returns the steps between lines that stay: 0 (none) on a terminal, else a 50th of all steps.
std::int64_t spacing(const StepPrinter::Options& o) {
  if (o.log_every) return *o.log_every;
  if (o.terminal) return 0;
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(o.steps) / 50));
}

}  // namespace

std::vector<StepField> fields_of(const StepPrinter::Line& line, std::int64_t steps,
                                 double seconds_left) {
  const auto width = fmt::formatted_size("{}", steps);
  std::vector<StepField> fields{
      {fmt::format("step {:>{}}/{}", line.step, width, steps), 0},
      {fmt::format("loss {:7.4f}", line.loss), 1},
      {fmt::format("norm {:6.3f}", line.norm), 4},
      {fmt::format("lr {:.2e}", line.rate), 5},
      {fmt::format("{:5.0f} ms", line.milliseconds), 6},
      {fmt::format("{:>6} tok/s", format_count(line.tokens_per_second)), 2}};
  if (line.mfu > 0) fields.push_back({fmt::format("{:4.1f}% MFU", line.mfu * 100), 7});
  fields.push_back({fmt::format("{:>8}", format_bytes(line.memory)), 8});
  fields.push_back({fmt::format("eta {}", format_duration(seconds_left)), 3});
  if (!line.details.empty()) fields.push_back({line.details, 9});
  return fields;
}

std::string fitted(const std::vector<StepField>& fields, std::size_t columns) {
  std::vector<std::size_t> by_rank(fields.size());
  std::iota(by_rank.begin(), by_rank.end(), 0);
  std::ranges::sort(by_rank, {}, [&](std::size_t i) { return fields[i].rank; });
  std::size_t used = 0, taken = 0;
  for (; taken < by_rank.size(); ++taken) {
    const std::size_t more = fields[by_rank[taken]].text.size() + (taken > 0 ? between.size() : 0);
    if (taken > 0 && used + more > columns) break;
    used += more;
  }
  by_rank.resize(taken);
  std::ranges::sort(by_rank);
  std::vector<std::string_view> texts;
  for (const std::size_t i : by_rank)
    texts.push_back(fields[i].text);
  return fmt::format("{}", fmt::join(texts, between)).substr(0, columns);
}

StepPrinter::StepPrinter(const Options& options) : options_(options), every_(spacing(options)) {}

void StepPrinter::draw(const Line& line, double seconds_left, bool stays) {
  // The terminal echoes ^C at the end of the line; in the last column it would start a new line.
  constexpr int echo = 3;
  constexpr int shortest_bar = 10, longest_bar = 40;
  const int columns = std::max(1, columns_of(STDOUT_FILENO) - echo);
  const auto fields = fields_of(line, options_.steps, seconds_left);
  const std::string text = fitted(fields, static_cast<std::size_t>(columns));
  const bool whole = text == fitted(fields, unlimited);
  const int length = static_cast<int>(text.size());
  // Rounds to multiples of 5, so that the bar does not change with every digit of the text.
  const int room = columns - length - 3;  // brackets and a blank
  const int width = std::min(longest_bar, room - room % 5);
  if (stays || !whole || width < shortest_bar) {
    say_live(text, length, text);
  } else {
    const std::string bar =
        format_bar(static_cast<double>(line.step) / static_cast<double>(options_.steps), width);
    say_live(fmt::format("{} {}", options_.colours ? in_colour(Colour::green, bar) : bar, text),
             length + width + 3, text);
  }
  if (stays) end_live_line();
}

void StepPrinter::step(const Line& line) {
  seconds_ += line.milliseconds / 1e3;
  const auto done = static_cast<double>(line.step - options_.first_step);
  const double left =
      static_cast<double>(options_.steps - line.step) * seconds_ / std::max(done, 1.0);
  const bool ends = line.step == options_.steps;
  const bool stays =
      every_ > 0 && (ends || line.step == options_.first_step + 1 || line.step % every_ == 0);
  if (options_.terminal) {
    draw(line, left, stays || ends);
    return;
  }
  const std::size_t room =
      options_.fits ? static_cast<std::size_t>(columns_of(STDOUT_FILENO)) : unlimited;
  const std::string text = fitted(fields_of(line, options_.steps, left), room) + "\n";
  withheld_ = stays ? "" : text;
  if (stays) say(text);
}

void StepPrinter::print(const std::string& text) {
  say(text + "\n");
}

void StepPrinter::print_sample(std::int64_t step, const std::string& text) {
  say_made(fmt::format("sample       step {}:\n---\n{}\n---\n", step, text));
}

void StepPrinter::finish() {
  if (!withheld_.empty()) say(withheld_);
  withheld_.clear();
  end_live_line();
}

}  // namespace sluice
