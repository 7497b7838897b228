#include "bench/kernels/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/cli/version.h"
#include "apps/output/output_file.h"
#include "engine/io/durable.h"
#include "kernels/base/error.h"

namespace sluice::bench {
namespace {

constexpr const char* csv_columns =
    "op,variant,shape,dimensions,dtype,mode,median_ms,p20_ms,p80_ms,repetitions,bytes,flops,"
    "gb_per_s,tflop_per_s,ceiling,percent_of_ceiling,error,error_bound\n";

using Json = nlohmann::ordered_json;

const char* name_of_ceiling(Ceiling ceiling) {
  return ceiling == Ceiling::copy ? "copy" : "gemm";
}

std::string key_of(const std::string& op, const std::string& variant, const std::string& shape,
                   const std::string& dimensions, const std::string& dtype,
                   const std::string& mode) {
  return fmt::format("{} {} {} {} {} {}", op, variant, shape, dimensions, dtype, mode);
}

const char* mode_of(const Row& row) {
  return row.cold ? "cold" : "hot";
}

std::string milliseconds(double value) {
  return value < 10 ? fmt::format("{:.4f}", value) : fmt::format("{:.2f}", value);
}

/// Formats the bytes moved or the operations done.
std::string amount(const Row& row) {
  return row.ceiling == Ceiling::copy ? fmt::format("{:.4g} MB", row.bytes / 1e6)
                                      : fmt::format("{:.4g} GFLOP", row.flops / 1e9);
}
std::string rate(const Row& row) {
  return row.ceiling == Ceiling::copy
             ? fmt::format("{:.4g} GB/s", row.bytes_per_second() / 1e9)
             : fmt::format("{:.4g} TFLOP/s", row.flops_per_second() / 1e12);
}

std::string predicted(const Row& row) {
  return row.predicted > 0 ? milliseconds(row.predicted) : "-";
}

std::string goal(const Row& row) {
  if (row.goal.of_copy > 0) return fmt::format("{:.0f}%", row.goal.of_copy * 100);
  if (row.goal.tflop_per_s > 0) return fmt::format("{:.0f} TFLOP/s", row.goal.tflop_per_s);
  return "-";
}

std::string deviation(const Row& row) {
  if (!row.deviation) return "-";
  return fmt::format("{:.1e}{}", row.deviation->error, row.deviation->within() ? "" : " WRONG");
}

/// JSON has no infinity, so a result that is not finite becomes null.
Json finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json to_json(const Row& row) {
  Json json{{"op", row.op},
            {"variant", row.variant},
            {"shape", row.shape},
            {"dimensions", row.dimensions},
            {"dtype", row.dtype},
            {"mode", mode_of(row)},
            {"median_ms", row.timing.median},
            {"p20_ms", row.timing.p20},
            {"p80_ms", row.timing.p80},
            {"repetitions", row.timing.repetitions},
            {"bytes", row.bytes},
            {"flops", row.flops},
            {"gb_per_s", row.bytes_per_second() / 1e9},
            {"tflop_per_s", row.flops_per_second() / 1e12},
            {"ceiling", name_of_ceiling(row.ceiling)},
            {"percent_of_ceiling", row.fraction * 100}};
  if (row.predicted > 0) json["predicted_ms"] = row.predicted;
  if (row.goal.of_copy > 0) json["goal_percent_of_copy"] = row.goal.of_copy * 100;
  if (row.goal.tflop_per_s > 0) json["goal_tflop_per_s"] = row.goal.tflop_per_s;
  if (row.deviation) {
    json["error"] = finite(row.deviation->error);
    json["error_of_worst_element"] = finite(row.deviation->worst);
    json["error_bound"] = row.deviation->bound;
    json["checked_tokens"] = row.deviation->tokens;
    json["within_bound"] = row.deviation->within();
  }
  if (row.times_saved) json["times_saved"] = *row.times_saved;
  return json;
}

}  // namespace

std::string Row::key() const {
  return key_of(op, variant, shape, dimensions, dtype, mode_of(*this));
}

std::string table_head(const Columns& columns) {
  return fmt::format(
      "{:<18} {:<16} {:<5} {:<16} {:<5} {:>9} {:>9} {:>9} {:>13} {:>15} {:>12} "
      "{:>11} {:>13}{}{}\n",
      "op", "variant", "shape", "size", "dtype", "median ms", "p20", "p80", "counted", "rate",
      "of ceiling", "goal", "error", columns.predicted ? "  predicted ms" : "",
      columns.compared ? "   / saved" : "");
}

std::string table_line(const Row& row, const Columns& columns) {
  std::string saved;
  if (columns.compared)
    saved = row.times_saved
                ? fmt::format("   {:.2f}x{}", *row.times_saved, row.slower ? " SLOWER" : "")
                : "   new";
  return fmt::format(
      "{:<18} {:<16} {:<5} {:<16} {:<5} {:>9} {:>9} {:>9} {:>13} {:>15} {:>12} "
      "{:>11} {:>13}{}{}\n",
      row.op, row.variant, row.shape, row.dimensions, row.dtype, milliseconds(row.timing.median),
      milliseconds(row.timing.p20), milliseconds(row.timing.p80), amount(row), rate(row),
      fmt::format("{:.1f}% {}", row.fraction * 100, name_of_ceiling(row.ceiling)), goal(row),
      deviation(row), columns.predicted ? fmt::format(" {:>13}", predicted(row)) : "", saved);
}

std::string prediction_head() {
  return fmt::format("{:<18} {:<16} {:<5} {:<16} {:<5} {:>13} {:>13}\n", "op", "variant", "shape",
                     "size", "dtype", "counted", "predicted ms");
}

std::string prediction_line(const Row& row) {
  return fmt::format("{:<18} {:<16} {:<5} {:<16} {:<5} {:>13} {:>13}\n", row.op, row.variant,
                     row.shape, row.dimensions, row.dtype, amount(row), predicted(row));
}

Json to_json(const Machine& machine, Calibration& calibration, const std::vector<Row>& rows) {
  const std::time_t now = std::time(nullptr);
  Json measured{{"copy_gb_per_s", calibration.copy_rate() / 1e9},
                {"copy_bytes", calibration.copy_shape()},
                {"gemm_tflop_per_s", Json::object()},
                {"gemm_shape", Json::object()}};
  for (const auto& [dtype, value] : calibration.gemm_rates()) {
    measured["gemm_tflop_per_s"][label_of(dtype)] = value / 1e12;
    measured["gemm_shape"][label_of(dtype)] = calibration.gemm_shape(dtype);
  }
  Json list = Json::array();
  for (const Row& row : rows)
    list.push_back(to_json(row));
  return {
      {"program", "sluice"},      {"device", machine.device},
      {"driver", machine.driver}, {"threads", machine.threads},
      {"commit", commit()},       {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
      {"calibration", measured},  {"rows", list}};
}

std::string to_csv(const std::vector<Row>& rows) {
  std::string text = csv_columns;
  for (const Row& row : rows)
    text += fmt::format(
        "{},{},{},{},{},{},{:.7g},{:.7g},{:.7g},{},{:.0f},{:.0f},{:.6g},{:.6g},{},"
        "{:.4g},{},{}\n",
        row.op, row.variant, row.shape, row.dimensions, row.dtype, mode_of(row), row.timing.median,
        row.timing.p20, row.timing.p80, row.timing.repetitions, row.bytes, row.flops,
        row.bytes_per_second() / 1e9, row.flops_per_second() / 1e12, name_of_ceiling(row.ceiling),
        row.fraction * 100, row.deviation ? fmt::format("{:.4g}", row.deviation->error) : "",
        row.deviation ? fmt::format("{:.4g}", row.deviation->bound) : "");
  return text;
}

std::map<std::string, double> saved_medians(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(fmt::format("--compare: {} cannot be read", path), ErrorKind::usage);
  std::map<std::string, double> medians;
  try {
    const Json saved = Json::parse(file);
    for (const auto& row : saved.at("rows"))
      medians[key_of(row.at("op"), row.at("variant"), row.at("shape"), row.at("dimensions"),
                     row.at("dtype"), row.at("mode"))] = row.at("median_ms");
  } catch (const Json::exception&) {
    fail(fmt::format("--compare: {} is not a file that bench_kernels --json wrote", path),
         ErrorKind::usage);
  }
  return medians;
}

void add_json_output(CommandLine& line, std::string& value, const std::string& help) {
  std::vector<std::string> marks;
  for (const char* const start : {"{\"program\":\"", "{\n \"program\": \""})
    for (const char* const program : {"sluice\"", "bench_"})
      marks.push_back(std::string(start) + program);
  add_output_file(line, "--json", value, "a file of figures", begins_with(marks), help);
}

void add_csv_output(CommandLine& line, std::string& value, const std::string& help) {
  add_output_file(line, "--csv", value, "a table of figures", begins_with({csv_columns}), help);
}

void require_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) fail(fmt::format("{} cannot be written", path));
}

void write_file(const std::string& path, const std::string& text) {
  write_file_durably(path, std::as_bytes(std::span(text)));
}

}  // namespace sluice::bench
