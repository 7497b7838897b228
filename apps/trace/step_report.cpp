#include "apps/trace/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "parallel/pipeline/schedule.h"

namespace sluice {

StepReport report_of(const std::vector<Timeline::Span>& spans, const StreamedBytes& moved) {
  StepReport report{.moved = moved};
  double up = 0, down = 0, first_reduction = INFINITY, last_reduction = 0;
  for (const auto& [name, lane, start, length, label] : spans) {
    if (lane == Timeline::Lane::network) {
      first_reduction = std::min(first_reduction, start);
      last_reduction = std::max(last_reduction, start + length);
    }
    if (name == "wait") report.wait += length;
    if (lane == Timeline::Lane::to_device) up += length;
    if (lane == Timeline::Lane::to_host) down += length;
    if (name == "forward") report.forward += length;
    if (name == "backward" || name == span_name(Action::Kind::weight_gradients))
      report.backward += length;
    if (name == "stall") report.stall += length;
    if (name == "update") report.update += length;
    if (name == "cpu update") report.cpu_update += length;
  }
  report.transfer = std::max(up, down);
  report.communication = std::max(0.0, last_reduction - first_reduction);
  // Updates of streamed state run during a pass, and so do stalls; they are not part of its time.
  std::vector<Timeline::Span> inside;
  std::ranges::copy_if(spans, std::back_inserter(inside), [](const Timeline::Span& span) {
    return span.name == "update" || span.name == "stall";
  });
  for (const auto& pass : spans) {
    if (pass.name != "forward" && pass.name != "backward") continue;
    for (const auto& span : inside)
      if (span.start >= pass.start && span.start < pass.start + pass.length)
        (pass.name == "forward" ? report.forward : report.backward) -= span.length;
  }
  return report;
}

std::string spell(const StepReport& report) {
  std::string text;
  for (const auto& [name, ms] : {std::pair("forward", report.forward),
                                 {"backward", report.backward},
                                 {"update", report.update},
                                 {"CPU's update", report.cpu_update},
                                 {"stall", report.stall},
                                 {"waiting for ranks", report.wait}})
    if (ms > 0)
      text += fmt::format("{}{} {:.1f}{}", text.empty() ? "" : ", ", name, ms,
                          text.empty() ? " ms" : "");
  return text;
}

nlohmann::ordered_json fields_of(const StepReport& report) {
  nlohmann::ordered_json fields{{"forward_ms", report.forward},
                                {"backward_ms", report.backward},
                                {"update_ms", report.update},
                                {"cpu_update_ms", report.cpu_update},
                                {"stall_ms", report.stall},
                                {"communication_ms", report.communication},
                                {"communication_wait_ms", report.wait},
                                {"bytes_to_device", report.moved.to_device},
                                {"bytes_to_host", report.moved.to_host},
                                {"overlap", report.overlap()}};
  if (report.moved.to_file > 0) {
    fields["bytes_from_file"] = report.moved.from_file;
    fields["bytes_to_file"] = report.moved.to_file;
  }
  if (report.taken_back) fields["taken_back"] = *report.taken_back;
  return fields;
}

}  // namespace sluice
