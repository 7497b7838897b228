// Times single kernels at the shapes of the four GPT-2 sizes, checks them against the CPU and
// compares them with the machine's limits. `bench_kernels calibrate` measures only the limits.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/cli/command_line.h"
#include "apps/cli/machine.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "bench/kernels/report.h"
#include "bench/kernels/roofline.h"
#include "kernels/cpu/parallel_for.h"
#include "models/decoder/config.h"

namespace sluice::bench {
namespace {

struct Options {
  std::optional<DeviceKind> device;
  std::string op, shape, dtype, variant, json, csv, compare, roofline;
  std::int64_t tokens = 0, seq = 1024, parameters = 0, threads = 0;
  double warmup = 25, rep = 100, threshold = 0.1;
  bool check = false, list = false, cold = false, hot = false, calibrate = false;
};

void declare(CommandLine& line, Options& o) {
  line.group("What");
  line.add_text("--op", o.op, "Ops, separated by commas; gemm stands for all gemm_*. Empty: all");
  line.add_text("--variant", o.variant, "Variants, likewise: forward, backward, wgrad, ...");
  line.add_text("--shape", o.shape, "124M, 355M, 774M, 1558M, all. Empty: all on a GPU, else 124M");
  line.add_text("--dtype", o.dtype, "fp32, bf16, fp16, all. Empty: bf16 on a GPU, else fp32");
  line.add("--list", o.list, "Print the cases and exit");
  line.add("--calibrate", o.calibrate, "Measure only the copy and the matrix product");
  line.group("Size");
  line.add("--tokens", o.tokens, "Rows; 0: 4096 to 16384 by shape on a GPU, else 256", 0, 1 << 24);
  line.add("--seq", o.seq, "Tokens of a sequence; fewer where --tokens are", 1, 1 << 20);
  line.add("--parameters", o.parameters,
           "Elements of what runs over all parameters; 0: the model's (emulated: 65536)", 0,
           std::int64_t{1} << 34);
  line.group("How");
  line.add_choice("--device", o.device, "Device", devices);
  line.add("--threads", o.threads, "CPU threads; 0: all cores", 0, 4096);
  line.add("--warmup", o.warmup, "Milliseconds before measuring, per case", 0, 1e6);
  line.add("--rep", o.rep, "Milliseconds of measuring, per case; 5 repetitions at least", 0, 1e6);
  line.add("--cold", o.cold, "Operands in no cache (on a GPU the default)");
  line.add("--hot", o.hot, "Operands where the last repetition left them");
  line.add("--check", o.check, "Compare the results with the CPU's in f64; exit 1 when one is off");
  line.add(
      "--roofline", o.roofline,
      "The card (h200, 4090, ...) for which to print predicted times: beside those measured or, "
      "without a GPU, alone; default: this GPU");
  line.group("Results");
  add_json_output(line, o.json, "Write all figures here");
  add_csv_output(line, o.csv, "Write the rows here");
  line.add("--compare", o.compare, "A file of --json: exit 1 when a case is slower than it was");
  line.add("--threshold", o.threshold, "How much slower counts; 0.1: 10 percent", 0, 100);
}

struct Model {
  const char* label;
  const char* preset;
  std::int64_t gpu_tokens;
};
constexpr Model models[] = {{"124M", "gpt2", 16384},
                            {"355M", "gpt2-medium", 8192},
                            {"774M", "gpt2-large", 4096},
                            {"1558M", "gpt2-xl", 4096}};

/// Parses a comma-separated list of names; each must be known.
std::vector<std::string> names(const std::string& flag, const std::string& text,
                               const std::vector<std::string>& known) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    found.push_back(text.substr(begin, end - begin));
    if (std::ranges::find(known, found.back()) == known.end())
      fail(fmt::format("{}: '{}' is not one of {}", flag, found.back(), fmt::join(known, ", ")),
           ErrorKind::usage);
    begin = end + 1;
  }
  return found;
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::ranges::find(list, name) != list.end();
}

std::vector<Case> select(const Options& o) {
  std::vector<Case> cases = all_cases();
  std::vector<std::string> ops, variants;
  for (const Case& item : cases) {
    if (!contains(ops, item.op)) ops.push_back(item.op);
    if (!contains(variants, item.variant)) variants.push_back(item.variant);
  }
  ops.push_back("gemm");
  if (!o.op.empty()) {
    const auto wanted = names("--op", o.op, ops);
    std::erase_if(cases, [&](const Case& item) {
      return !contains(wanted, item.op) &&
             !(item.op.starts_with("gemm_") && contains(wanted, "gemm"));
    });
  }
  if (!o.variant.empty()) {
    const auto wanted = names("--variant", o.variant, variants);
    std::erase_if(cases, [&](const Case& item) { return !contains(wanted, item.variant); });
    if (cases.empty())
      fail(fmt::format("--op {} has no variant {}; --list prints all", o.op, o.variant),
           ErrorKind::usage);
  }
  return cases;
}

void print_list(const std::vector<Case>& cases) {
  say(fmt::format("{:<18} {:<16} {:<16} {}\n", "op", "variant", "dtypes", "ceiling"));
  for (const Case& item : cases) {
    std::vector<std::string> dtypes;
    for (const DType dtype : item.dtypes)
      dtypes.push_back(label_of(dtype));
    say(fmt::format("{:<18} {:<16} {:<16} {}\n", item.op, item.variant,
                    fmt::format("{}", fmt::join(dtypes, " ")),
                    item.ceiling == Ceiling::copy ? "copy" : "gemm"));
  }
}

class Bench {
 public:
  explicit Bench(const Options& o)
      : options_(o),
        device_(open(o)),
        host_(device_->device().kind == DeviceKind::cpu ? device_ : make_cpu_device()),
        gpu_(is_gpu(device_)),
        cold_(o.cold || (gpu_ && !o.hot)),
        roofline_(roofline_of(o, device_)),
        as_gpu_(gpu_ || roofline_),
        timer_(device_, {.warmup_ms = o.warmup, .measured_ms = o.rep, .cold = cold_}),
        calibration_(device_, {.warmup_ms = 20, .measured_ms = 50}) {}

  int run(std::vector<Case> cases);

 private:
  static DevicePtr open(const Options& o) { return make_device(choose_device(o.device), {}); }

  /// Returns none for a card that is not known, unless it was asked for.
  static std::optional<Roofline> roofline_of(const Options& o, const DevicePtr& device) {
    if (!o.roofline.empty()) return Roofline(o.roofline);
    if (!is_gpu(device)) return {};
    try {
      return Roofline(device->runtime().info().name);
    } catch (const Error&) {
      return {};
    }
  }

  std::vector<Model> chosen_models() const;
  std::vector<DType> chosen_dtypes(const Case& item) const;
  Extent extent_of(const Model& model) const;
  void calibrate();
  void measure(const Case& item, const Model& model, DType dtype);
  void predict(const Case& item, const Model& model, DType dtype) const;
  int finish();

  const Options& options_;
  DevicePtr device_, host_;
  bool gpu_, cold_;
  std::optional<Roofline> roofline_;
  bool as_gpu_;  ///< sizes and dtypes are those of a GPU
  Timer timer_;
  Calibration calibration_;
  std::map<std::string, double> saved_;
  std::vector<Row> rows_;
  int wrong_ = 0, slower_ = 0, failed_ = 0;
};

std::vector<Model> Bench::chosen_models() const {
  std::vector<std::string> known{"all"};
  for (const Model& model : models)
    known.emplace_back(model.label);
  const std::string fallback = as_gpu_ ? "all" : "124M";
  const auto wanted = names("--shape", options_.shape.empty() ? fallback : options_.shape, known);
  std::vector<Model> chosen;
  for (const Model& model : models)
    if (contains(wanted, "all") || contains(wanted, model.label)) chosen.push_back(model);
  return chosen;
}

std::vector<DType> Bench::chosen_dtypes(const Case& item) const {
  const std::string fallback = as_gpu_ ? "bf16" : "fp32";
  const auto wanted = names("--dtype", options_.dtype.empty() ? fallback : options_.dtype,
                            {"all", "fp32", "bf16", "fp16"});
  // A case with a single dtype is measured unless another dtype was requested.
  if (options_.dtype.empty() && item.dtypes.size() == 1) return item.dtypes;
  std::vector<DType> chosen;
  for (const DType dtype : item.dtypes)
    if (contains(wanted, "all") || contains(wanted, label_of(dtype))) chosen.push_back(dtype);
  return chosen;
}

Extent Bench::extent_of(const Model& model) const {
  const DecoderConfig config = *preset(model.preset);
  Extent e{.width = config.n_embd, .heads = config.n_head};
  e.tokens = options_.tokens > 0 ? options_.tokens : as_gpu_ ? model.gpu_tokens : 256;
  e.positions = std::min(options_.seq, e.tokens);
  if (e.tokens % e.positions != 0)
    fail(fmt::format("--tokens {} is no whole number of sequences of --seq {}", e.tokens,
                     options_.seq),
         ErrorKind::usage);
  const bool emulated = !as_gpu_ && device_->device().kind == DeviceKind::cuda;
  e.parameters = options_.parameters > 0 ? options_.parameters
                 : emulated              ? 65536
                                         : config.parameter_count();
  return e;
}

void Bench::calibrate() {
  const DType dtype = gpu_ ? DType::bf16 : DType::f32;
  say(fmt::format("copy   {:>8.4g} GB/s     {}, read and write counted\n",
                  calibration_.copy_rate() / 1e9, calibration_.copy_shape()));
  std::set<DType> dtypes{dtype};
  if (options_.calibrate) dtypes.insert({DType::f32, DType::bf16});
  for (const DType each : dtypes)
    say(fmt::format("gemm   {:>8.4g} TFLOP/s  {} {}, random numbers\n",
                    calibration_.gemm_rate(each) / 1e12, calibration_.gemm_shape(each),
                    label_of(each)));
}

void Bench::measure(const Case& item, const Model& model, DType dtype) {
  const Extent extent = extent_of(model);
  const std::string name =
      fmt::format("{} {} {} {}", item.op, item.variant, model.label, label_of(dtype));
  const Problem problem = item.make(extent, dtype);
  const std::size_t bytes = Buffers::bytes_for(problem);
  // The CPU's memory is shared: memory within the capacity may not be available when touched.
  const std::size_t room = device_->arena().capacity() - device_->arena().in_use();
  if (bytes > (gpu_ ? room : room / 2)) {
    say(fmt::format("{}: left out, its {} do not fit\n", name, format_bytes(bytes)));
    return;
  }
  Row row{.op = item.op,
          .variant = item.variant,
          .shape = model.label,
          .dimensions = problem.dimensions,
          .dtype = label_of(dtype),
          .cold = cold_,
          .bytes = problem.bytes,
          .flops = problem.flops,
          .ceiling = item.ceiling};
  try {
    if (options_.check) row.deviation = check_case(item, extent, dtype, device_, host_);
    row.timing = timer_.time(problem);
  } catch (const Error& error) {
    say(fmt::format("{}: {}\n", name, error.what()));
    if (!item.baseline) ++failed_;
    return;
  }
  row.fraction = item.ceiling == Ceiling::copy
                     ? row.bytes_per_second() / calibration_.copy_rate()
                     : row.flops_per_second() / calibration_.gemm_rate(dtype);
  if (gpu_) row.goal = item.goal;
  if (roofline_) row.predicted = roofline_->milliseconds(item, problem, dtype);
  if (row.deviation && !row.deviation->within()) ++wrong_;
  if (const auto saved = saved_.find(row.key()); saved != saved_.end()) {
    row.times_saved = row.timing.median / saved->second;
    row.slower = *row.times_saved > 1 + options_.threshold;
    slower_ += row.slower ? 1 : 0;
  }
  say(table_line(row, {.predicted = roofline_.has_value(), .compared = !options_.compare.empty()}));
  rows_.push_back(std::move(row));
}

void Bench::predict(const Case& item, const Model& model, DType dtype) const {
  const Problem problem = item.make(extent_of(model), dtype);
  say(prediction_line({.op = item.op,
                       .variant = item.variant,
                       .shape = model.label,
                       .dimensions = problem.dimensions,
                       .dtype = label_of(dtype),
                       .bytes = problem.bytes,
                       .flops = problem.flops,
                       .ceiling = item.ceiling,
                       .predicted = roofline_->milliseconds(item, problem, dtype)}));
}

int Bench::finish() {
  const DeviceInfo info = device_->runtime().info();
  const Machine machine{.device = info.name, .driver = info.driver, .threads = cpu::threads()};
  if (!options_.json.empty())
    write_file(options_.json, to_json(machine, calibration_, rows_).dump(1) + "\n");
  if (!options_.csv.empty()) write_file(options_.csv, to_csv(rows_));
  if (options_.check) say(fmt::format("{} of {} results are wrong\n", wrong_, rows_.size()));
  if (!options_.compare.empty())
    say(fmt::format("{} of {} cases are slower than in {} by more than {:.4g}%; {} are not in it\n",
                    slower_, rows_.size(), options_.compare, options_.threshold * 100,
                    std::ranges::count_if(rows_, [](const Row& r) { return !r.times_saved; })));
  if (failed_ > 0) say(fmt::format("{} cases could not be measured\n", failed_));
  return wrong_ + slower_ + failed_ > 0 ? 1 : 0;
}

int Bench::run(std::vector<Case> cases) {
  // Reports problems with the request before anything is measured.
  if (roofline_ && !gpu_ &&
      (options_.check || options_.calibrate || !options_.json.empty() || !options_.csv.empty() ||
       !options_.compare.empty()))
    fail(
        "--roofline without a GPU measures nothing that --check, --calibrate, --json, --csv or "
        "--compare could use; leave them out",
        ErrorKind::usage);
  if (!gpu_) std::erase_if(cases, [](const Case& item) { return item.baseline; });
  if (cases.empty()) fail("these rows are another library's on a GPU", ErrorKind::usage);
  const auto chosen = chosen_models();
  std::size_t count = 0;
  for (const Model& model : chosen)
    static_cast<void>(extent_of(model));
  for (const Case& item : cases)
    count += chosen_dtypes(item).size();
  if (count == 0 && !options_.calibrate)
    fail(
        fmt::format("--dtype {} is not one that these ops have; --list prints all", options_.dtype),
        ErrorKind::usage);
  if (!options_.compare.empty()) saved_ = saved_medians(options_.compare);
  for (const std::string& path : {options_.json, options_.csv})
    if (!path.empty()) require_writable(path);

  const auto each = [&](auto&& visit) {
    for (const Case& item : cases)
      for (const Model& model : chosen)
        for (const DType dtype : chosen_dtypes(item))
          visit(item, model, dtype);
  };
  if (roofline_ && !gpu_) {
    say(fmt::format("predicted for {}, not measured\n\n", roofline_->chip()) + prediction_head());
    each([&](const auto&... at) { predict(at...); });
    return 0;
  }

  const DeviceInfo info = device_->runtime().info();
  say(fmt::format(
      "device {}, {}\n", info.name,
      gpu_ ? fmt::format("driver {}, {} multiprocessors", info.driver, info.multiprocessors)
           : fmt::format("{} threads", cpu::threads())));
  calibrate();
  if (options_.calibrate) return finish();
  if (roofline_) say(fmt::format("predicted for {}\n", roofline_->chip()));
  say(fmt::format("caches {}\n\n", cold_ ? "cold" : "hot") +
      table_head({.predicted = roofline_.has_value(), .compared = !options_.compare.empty()}));
  each([&](const auto&... at) { measure(at...); });
  return finish();
}

int run(const Options& options) {
  if (options.cold && options.hot) fail("--cold and --hot contradict each other", ErrorKind::usage);
  const auto cases = select(options);
  if (options.list) {
    print_list(cases);
    return 0;
  }
  cpu::set_threads(static_cast<int>(options.threads));
  return Bench(options).run(cases);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::run_program("bench_kernels", [&] {
    sluice::bench::Options options;
    std::vector<const char*> arguments(argv, argv + argc);
    if (argc > 1 && std::string_view(argv[1]) == "calibrate") {
      options.calibrate = true;
      arguments.erase(arguments.begin() + 1);
    }
    sluice::CommandLine line("bench_kernels",
                             "Times kernels at the shapes of the four GPT-2 sizes, and checks "
                             "them. `bench_kernels calibrate` measures what the machine can do.");
    sluice::bench::declare(line, options);
    return line.parse(static_cast<int>(arguments.size()), arguments.data())
               ? sluice::bench::run(options)
               : 0;
  });
}
