#include "parallel/pipeline/schedule_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"

namespace sluice {
namespace {

constexpr double left = 64, top = 40, chart = 1120, row = 30, bar = 24;
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
std::string colour(Action::Kind kind, std::size_t place, std::size_t places) {
  const int hue = kind == Action::Kind::forward ? 210 : 30;
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
  const double y = top + static_cast<double>(rank) * row;
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

std::string to_svg(const Schedule& schedule, const Simulation& simulation, std::string_view title) {
  if (simulation.ranks.size() != schedule.ranks.size())
    fail(fmt::format("a schedule of {} ranks and a simulation of {}", schedule.ranks.size(),
                     simulation.ranks.size()),
         ErrorKind::usage);
  const double bottom = top + static_cast<double>(schedule.ranks.size()) * row;
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
                        left - 8, top + static_cast<double>(rank) * row + bar - 8, rank);
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
