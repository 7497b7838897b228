#include "parallel/pipeline/schedule_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "kernels/base/error.h"

namespace sluice {
namespace {

using Kind = Action::Kind;

struct Name {
  Kind kind;
  std::string_view text;
};

constexpr std::array<Name, 7> names{{{Kind::forward, "F"},
                                     {Kind::backward, "B"},
                                     {Kind::weight_gradients, "W"},
                                     {Kind::send_output, "SEND_F"},
                                     {Kind::receive_input, "RECV_F"},
                                     {Kind::send_gradient, "SEND_B"},
                                     {Kind::receive_gradient, "RECV_B"}}};

std::string_view name_of(Kind kind) {
  const auto name =
      std::find_if(names.begin(), names.end(), [&](const Name& n) { return n.kind == kind; });
  return name->text;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// Removes the text before `separator`, and the separator, from `rest`; returns the text.
std::string_view take_until(std::string_view& rest, char separator) {
  const auto end = std::min(rest.find(separator), rest.size());
  const std::string_view taken = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return taken;
}

class CsvReader {
 public:
  Schedule read(std::string_view text) {
    if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);  // a byte order mark
    while (!text.empty()) {
      ++line_;
      std::string_view line = take_until(text, '\n');
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      read_line(line);
    }
    if (schedule_.ranks.empty())
      fail("the schedule has no rows: a row for each rank, with cells such as 0F0,0B0",
           ErrorKind::usage);
    if (highest_.stage < 0) fail("the schedule has no actions", ErrorKind::usage);
    schedule_.stages = highest_.stage + 1;
    schedule_.micro_batches = highest_.micro_batch + 1;
    return std::move(schedule_);
  }

 private:
  void read_line(std::string_view line) {
    const std::string_view content = trimmed(line);
    if (content.empty()) {
      if (blank_ == 0) blank_ = line_;
      return;
    }
    if (content.front() == '#') return;
    if (blank_ > 0 && !schedule_.ranks.empty())
      fail(fmt::format("schedule, line {}: blank, but line {} goes on: a rank without actions is "
                       "a row of two empty cells",
                       blank_, line_),
           ErrorKind::usage);
    blank_ = 0;
    if (schedule_.ranks.size() == static_cast<std::size_t>(max_ranks))
      fail(fmt::format("schedule, line {}: more than {} ranks", line_, max_ranks),
           ErrorKind::usage);
    auto& actions = schedule_.ranks.emplace_back();
    column_ = 0;
    while (!line.empty()) {
      ++column_;
      const std::string_view cell = trimmed(take_until(line, ','));
      if (!cell.empty()) actions.push_back(read_cell(cell));
    }
  }

  Action read_cell(std::string_view cell) {
    Action action;
    std::string_view rest = cell;
    const auto stage = number(rest);
    const auto name = take_name(rest);
    const auto micro_batch = number(rest);
    if (!stage || !name || !micro_batch || !rest.empty())
      refuse(cell, "is not an action such as 0F3, 0B3, 0W3, 0SEND_F3 or 1RECV_F3");
    if (*stage >= max_stages) refuse(cell, fmt::format("has a stage over {}", max_stages - 1));
    if (*micro_batch >= max_micro_batches)
      refuse(cell, fmt::format("has a micro-batch over {}", max_micro_batches - 1));
    action = {*name, *stage, *micro_batch};
    highest_.stage = std::max(highest_.stage, action.stage);
    highest_.micro_batch = std::max(highest_.micro_batch, action.micro_batch);
    return action;
  }

  /// Reads a number without sign or leading zeros. A number that overflows is returned as one above
  /// all limits.
  static std::optional<int> number(std::string_view& rest) {
    constexpr int far_too_large = 100'000'000;
    std::size_t digits = 0;
    int value = 0;
    for (; digits < rest.size() && is_digit(rest[digits]); ++digits)
      value = std::min(value * 10 + (rest[digits] - '0'), far_too_large);
    if (digits == 0 || (digits > 1 && rest.front() == '0')) return std::nullopt;
    rest.remove_prefix(digits);
    return value;
  }

  static std::optional<Kind> take_name(std::string_view& rest) {
    const auto end = std::find_if(rest.begin(), rest.end(), is_digit);
    const auto size = static_cast<std::size_t>(end - rest.begin());
    for (const Name& name : names)
      if (rest.substr(0, size) == name.text) {
        rest.remove_prefix(size);
        return name.kind;
      }
    return std::nullopt;
  }

  [[noreturn]] void refuse(std::string_view cell, const std::string& why) const {
    constexpr std::size_t max_shown = 40;
    std::string shown(cell.substr(0, max_shown));
    for (char& c : shown)
      if (c < ' ' || c > '~') c = '?';
    fail(fmt::format("schedule, line {}, column {}: '{}'{} {}", line_, column_, shown,
                     cell.size() > max_shown ? "..." : "", why),
         ErrorKind::usage);
  }

  Schedule schedule_{};
  Action highest_{.stage = -1, .micro_batch = -1};
  int line_ = 0, column_ = 0;
  int blank_ = 0;  ///< line number of the first of the blank lines before this one
};

/// A rank's line, drawn up to `width`.
std::string grid_line(const std::vector<Simulation::Span>& spans, bool several, std::size_t slot,
                      std::size_t width) {
  std::string line;
  for (const auto& span : spans) {
    const auto begin = static_cast<std::size_t>(span.start) * slot;
    const auto end = static_cast<std::size_t>(span.end) * slot;
    line.resize(std::min(begin, width + 1), ' ');
    if (begin > width) break;
    line += several ? to_text(span.action)
                    : fmt::format("{}{}", name_of(span.action.kind), span.action.micro_batch);
    if (end > begin + slot) line.resize(end - 1, '-');  // the action takes several slots
  }
  return line;
}

// These sizes of the picture are in pixels.
constexpr double left = 64, top = 40, chart = 1120, row_height = 30, bar = 24;
constexpr double letter = 6.5;  // the width of a digit

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<')
      safe += "&lt;";
    else if (c == '&')
      safe += "&amp;";
    else if (c >= 0 && c < ' ')
      safe += ' ';
    else
      safe += c;
  }
  return safe;
}

/// `place` is the stage's index among the `places` stages of its rank.
std::string colour(Kind kind, std::size_t place, std::size_t places) {
  const int hue = kind == Kind::forward ? 210 : kind == Kind::backward ? 30 : 130;
  const double share =
      places > 1 ? static_cast<double>(place) / static_cast<double>(places - 1) : 0;
  return fmt::format("hsl({},70%,{:.0f}%)", hue, 78 - 28 * share);
}

/// Distance between axis marks: 1, 2 or 5 times a power of ten, with at most ten marks.
double tick_of(double makespan) {
  const double least = makespan / 10;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

std::string bar_of(const Simulation::Span& span, std::size_t rank, double scale,
                   const std::vector<int>& stages) {
  const auto place =
      std::lower_bound(stages.begin(), stages.end(), span.action.stage) - stages.begin();
  const double x = left + span.start * scale, width = (span.end - span.start) * scale;
  const double y = top + static_cast<double>(rank) * row_height;
  std::string text = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\"/>\n", x, y,
      width, bar, colour(span.action.kind, static_cast<std::size_t>(place), stages.size()));
  const std::string number = fmt::format("{}", span.action.micro_batch);
  if (static_cast<double>(number.size()) * letter < width)
    text += fmt::format("<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n",
                        x + width / 2, y + bar - 8, number);
  return text;
}

}  // namespace

std::string to_text(const Action& action) {
  return fmt::format("{}{}{}", action.stage, name_of(action.kind), action.micro_batch);
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.ranks) {
    for (std::size_t i = 0; i < actions.size(); ++i)
      text += (i == 0 ? "" : ",") + to_text(actions[i]);
    text += actions.empty() ? ",\n" : "\n";
  }
  return text;
}

Schedule schedule_from_csv(std::string_view text) {
  return CsvReader().read(text);
}

std::string to_grid(const Schedule& schedule, const GridOptions& options) {
  if (options.width < 20 || options.forward < 1 || options.backward < 1)
    fail("a grid has lines of 20 characters or more, and actions of one slot or more",
         ErrorKind::usage);
  if (splits_backward(schedule) && options.backward < 2)
    fail("a backward in two parts takes two slots or more", ErrorKind::usage);
  const StageCosts costs{.forward = static_cast<double>(options.forward),
                         .backward = static_cast<double>(options.backward)};
  const std::vector<StageCosts> all(static_cast<std::size_t>(std::max(schedule.stages, 0)), costs);
  const Simulation simulation = simulate(schedule, all);
  const bool several = static_cast<std::size_t>(schedule.stages) > schedule.ranks.size();
  std::size_t slot = fmt::format("F{} ", schedule.micro_batches - 1).size();
  if (several) slot += fmt::format("{}", schedule.stages - 1).size();
  const auto digits = fmt::format("{}", schedule.ranks.size() - 1).size();
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string line = fmt::format("rank {:>{}} |", rank, digits);
    const std::size_t room = static_cast<std::size_t>(options.width) - line.size();
    std::string cells = grid_line(simulation.ranks[rank], several, slot, room);
    if (cells.size() > room) {
      cells.resize(room - 3);
      cells += "...";
    }
    text += line + cells + "\n";
  }
  return text;
}

std::string to_svg(const Schedule& schedule, const Simulation& simulation, std::string_view title) {
  if (simulation.ranks.size() != schedule.ranks.size())
    fail(fmt::format("a schedule of {} ranks and a simulation of {}", schedule.ranks.size(),
                     simulation.ranks.size()),
         ErrorKind::usage);
  const double bottom = top + static_cast<double>(schedule.ranks.size()) * row_height;
  const double scale = simulation.makespan > 0 ? chart / simulation.makespan : 0;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<g stroke=\"none\">\n<text x=\"{2:.0f}\" y=\"24\" font-size=\"14\">{3}: bubble "
      "{4:.1f} %</text>\n",
      left + chart + 24, bottom + 32, left, escaped(title), 100 * simulation.bubble());
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<int> stages;
    for (const Action& action : schedule.ranks[rank])
      stages.push_back(action.stage);
    std::sort(stages.begin(), stages.end());
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
    text += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">rank {}</text>\n",
                        left - 8, top + static_cast<double>(rank) * row_height + bar - 8, rank);
    for (const auto& span : simulation.ranks[rank])
      text += bar_of(span, rank, scale, stages);
  }
  text += fmt::format("<path stroke=\"black\" d=\"M{:.0f} {:.0f}H{:.0f}\"/>\n", left, bottom,
                      left + chart);
  if (scale > 0) {
    const double tick = tick_of(simulation.makespan);
    for (int i = 0; i * tick <= simulation.makespan * (1 + 1e-9); ++i)
      text += fmt::format(
          "<path stroke=\"black\" d=\"M{0:.2f} {1:.0f}v5\"/>\n"
          "<text x=\"{0:.2f}\" y=\"{2:.0f}\" text-anchor=\"middle\">{3:.6g}</text>\n",
          left + i * tick * scale, bottom, bottom + 18, i * tick);
  }
  return text + "</g>\n</svg>\n";
}

}  // namespace sluice
