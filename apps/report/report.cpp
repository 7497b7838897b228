#include "apps/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string cell_of(const Figure& figure) {
  const Json& value = *figure.value;
  const auto pattern = fmt::runtime(figure.column.pattern);
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float() || figure.column.unit != 1)
    return fmt::format(pattern, figure.column.unit * value.get<double>());
  return fmt::format(pattern, value.dump());
}

std::string lines_of(const std::vector<Figures>& rows) {
  std::vector<std::string> lines(rows.size() + 1);  // the first has the headings
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    const auto& [heading, width, pattern, unit] = rows[0][i].column;
    if (heading.empty()) continue;
    std::vector<std::string> cells{heading};
    for (const Figures& row : rows)
      cells.push_back(cell_of(row[i]));
    const std::size_t widest = std::ranges::max(cells, {}, &std::string::size).size();
    for (std::size_t line = 0; line < lines.size(); ++line)
      lines[line] += width > 0 ? fmt::format(" {:>{}}", cells[line], width)
                               : fmt::format("  {:<{}}", cells[line], widest);
  }
  std::string text;
  for (const std::string& line : lines)  // without the first space and the last ones
    text += line.substr(1, line.find_last_not_of(' ')) + "\n";
  return text;
}

}  // namespace

Figure::Figure(std::string named, const Json& counted, Column shown)
    : key(std::move(named)), value(std::make_shared<Json>(counted)), column(std::move(shown)) {}

Figures& operator+=(Figures& figures, const Figures& more) {
  figures.insert(figures.end(), more.begin(), more.end());
  return figures;
}

Json to_json(const Figures& figures) {
  Json json = Json::object();
  for (const Figure& figure : figures)
    if (!figure.key.empty()) json[figure.key] = *figure.value;
  return json;
}

void Report::row(const std::string& label, const std::string& line, const Figures& more) {
  text += fmt::format("{:<12} {}\n", label, line);
  figures += more;
}

void Report::table(const std::string& key, const std::vector<Figures>& rows,
                   const std::string& above) {
  if (!rows.empty()) text += "\n" + above + lines_of(rows);
  Json objects = Json::array();
  for (const Figures& row : rows)
    objects.push_back(to_json(row));
  figures += {{key, objects}};
}

void Report::append(const Report& other, const std::string& key) {
  text += other.text;
  figures += key.empty() ? other.figures : Figures{{key, to_json(other.figures)}};
}

}  // namespace sluice
