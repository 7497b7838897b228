// Times collectives in the manner of nccl-tests: mpirun -n 2 bench_collectives. Without mpirun the
// ranks are threads of this process.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/cli/command_line.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/cli/version.h"
#include "bench/kernels/report.h"
#include "kernels/cpu/parallel_for.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/transport/mpi_transport.h"
#include "parallel/comm/transport/thread_transport.h"

namespace sluice::bench {
namespace {

struct Options {
  std::string collectives, min_bytes = "4", max_bytes = "64MiB", dtype = "fp32", json;
  std::int64_t factor = 4, ranks = 0, threads = 0;
  double rep = 200;
  bool checked = false;
};

void declare(CommandLine& line, Options& o) {
  line.group("What");
  line.add_text("--collective", o.collectives, "Collectives, separated by commas. Empty: all");
  line.add("--min-bytes", o.min_bytes, "The smallest array: bytes, or 64KiB, 16MiB");
  line.add("--max-bytes", o.max_bytes, "The largest array");
  line.add("--factor", o.factor, "From one size to the next", 2, 1 << 20);
  line.add_choice("--dtype", o.dtype, "Type of the numbers", {"fp32", "bf16"});
  line.group("How");
  line.add("--ranks", o.ranks, "Threads as ranks, where mpirun has not started them; 0: one", 0,
           1024);
  line.add("--threads", o.threads, "CPU threads of a rank; 0: its share of the cores", 0, 4096);
  line.add("--rep", o.rep, "Milliseconds of measuring, per row; 5 repetitions at least", 0, 1e6);
  line.add("--checked", o.checked,
           "Count wrong elements, and time with the ranks comparing their operations; exit 1 when "
           "one is wrong");
  line.group("Results");
  add_json_output(line, o.json, "Write all figures here");
}

/// Parses "4", "64KiB", "64MiB"; arrays may be smaller than any memory that --gpu-memory accepts.
std::size_t parse_size(const std::string& flag, const std::string& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  constexpr std::array<std::string_view, 4> units{"", "KiB", "MiB", "GiB"};
  const auto found = std::ranges::find(units, unit);
  if (error != std::errc() || found == units.end() || value == 0 || value > (1U << 30))
    fail(fmt::format("{}: '{}' is no size such as 4, 64KiB or 64MiB", flag, text),
         ErrorKind::usage);
  return value << (10 * (found - units.begin()));
}

struct Row {
  std::string collective;
  std::size_t bytes = 0;
  std::int64_t count = 0;
  double microseconds = 0;
  double factor = 0;  ///< bus bandwidth / algorithm bandwidth
  std::int64_t wrong = 0;

  double algorithm_rate() const { return static_cast<double>(bytes) / (microseconds * 1e3); }
  double bus_rate() const { return algorithm_rate() * factor; }
};

/// Input of `rank` at position `at`: a small whole number, so that all sums are exact.
int contribution(int rank, std::int64_t at) {
  const std::uint64_t x = static_cast<std::uint64_t>(at) * 1024 + static_cast<std::uint64_t>(rank);
  return static_cast<int>((x * 0x9E3779B97F4A7C15u) >> 62);
}

/// Array that a collective works on.
class Numbers {
 public:
  Numbers(DType dtype, std::size_t bytes) : dtype_(dtype), bytes_(bytes) {}

  View view(std::int64_t first, std::int64_t count) {
    return {bytes_.data() + static_cast<std::size_t>(first) * size_of(dtype_), dtype_, {count}};
  }
  void set(std::int64_t at, int value) {
    if (dtype_ == DType::f32)
      view(at, 1).data<float>()[0] = static_cast<float>(value);
    else
      view(at, 1).data<BFloat16>()[0] = BFloat16(static_cast<float>(value));
  }
  float get(std::int64_t at) {
    return dtype_ == DType::f32 ? view(at, 1).data<float>()[0]
                                : static_cast<float>(view(at, 1).data<BFloat16>()[0]);
  }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

class Bench {
 public:
  Bench(const Options& o, const std::vector<std::string>& chosen, Communicator& c);
  int run();

 private:
  /// A collective on an array of `count` numbers: one array, or an equal part for each rank.
  struct Trial {
    std::int64_t count;
    double factor;
    std::function<Handle()> start;
    Numbers* result;  ///< checked array; `part`: its checked numbers
    Part part;
    std::function<int(std::int64_t at)> wanted;
  };
  Trial trial(const std::string& name, std::int64_t count);
  void fill(const Trial& trial);
  std::int64_t wrong_numbers(const Trial& trial);
  double microseconds(const Trial& trial);
  void measure(const std::string& name, std::int64_t count);
  double slowest(double seconds) const {
    return std::ranges::max(c_.gather_values(seconds, "time"));
  }
  void print(const std::string& text) const {
    if (c_.rank() == 0) say(text);
  }
  nlohmann::ordered_json to_json() const;

  const Options& options_;
  const std::vector<std::string> chosen_;
  Communicator& c_;
  const DType dtype_;
  const std::size_t smallest_, largest_;
  Numbers data_, other_;
  std::vector<std::byte> scratch_;
  std::vector<Row> rows_;
};

Bench::Bench(const Options& o, const std::vector<std::string>& chosen, Communicator& c)
    : options_(o),
      chosen_(chosen),
      c_(c),
      dtype_(o.dtype == "fp32" ? DType::f32 : DType::bf16),
      smallest_(parse_size("--min-bytes", o.min_bytes)),
      largest_(parse_size("--max-bytes", o.max_bytes)),
      data_(dtype_, std::max(largest_, static_cast<std::size_t>(c.size()) * size_of(dtype_))),
      other_(dtype_, std::max(largest_, static_cast<std::size_t>(c.size()) * size_of(dtype_))),
      scratch_(static_cast<std::size_t>(c.size() - 1) * largest_) {}

Bench::Trial Bench::trial(const std::string& name, std::int64_t count) {
  const int n = c_.size(), rank = c_.rank();
  const std::int64_t each = std::max<std::int64_t>(1, count / n);
  const double share = static_cast<double>(n - 1) / n;
  const CallOptions how{
      .label = "bench",
      .scratch = {scratch_.data(), DType::u8, {static_cast<std::int64_t>(scratch_.size())}}};
  const auto sum = [n](std::int64_t at) {
    int total = 0;
    for (int r = 0; r < n; ++r)
      total += contribution(r, at);
    return total;
  };
  const auto own = [rank](std::int64_t at) { return contribution(rank, at); };
  const auto of_root = [](std::int64_t at) { return contribution(0, at); };
  const View data = data_.view(0, count), other = other_.view(0, count);
  const Part whole{0, count};
  if (name == "all_reduce")
    return {count, 2 * share, [=, this] { return c_.all_reduce(data, how); }, &data_, whole, sum};
  if (name == "reduce")
    return {count,  1,     [=, this] { return c_.reduce(data, 0, how); },
            &data_, whole, rank == 0 ? std::function<int(std::int64_t)>(sum) : own};
  if (name == "broadcast")
    return {count, 1, [=, this] { return c_.broadcast(data, 0, how); }, &data_, whole, of_root};
  if (name == "p2p") {
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    return {count,
            1,
            [=, this] { return c_.p2p({{true, next, data}, {false, previous, other}}, how); },
            &other_,
            whole,
            [previous](std::int64_t at) { return contribution(previous, at); }};
  }
  if (name == "barrier") return {0, 0, [this] { return c_.barrier("bench"); }, &data_, {}, own};

  const std::int64_t all = each * n;
  const auto parts = even_parts(all, n, 1);
  const Part mine = parts[static_cast<std::size_t>(rank)];
  const View everything = data_.view(0, all), some = other_.view(0, each);
  if (name == "reduce_scatter")
    return {all,    share, [=, this] { return c_.reduce_scatter(everything, parts, how); },
            &data_, mine,  sum};
  const auto by_place = [each](std::int64_t at) {
    return contribution(static_cast<int>(at / each), at);
  };
  if (name == "all_gather")
    return {all,    share,    [=, this] { return c_.all_gather(everything, parts, how); },
            &data_, {0, all}, by_place};
  // data_ holds the root's numbers, ordered by rank; other_ holds each rank's own numbers.
  if (name == "gather")
    return {
        all,
        share,
        [=, this] { return c_.gather(some, everything, 0, how); },
        &data_,
        {0, rank == 0 ? all : 0},
        [each](std::int64_t at) { return contribution(static_cast<int>(at / each), at % each); }};
  return {all,
          share,
          [=, this] { return c_.scatter(everything, some, 0, how); },
          &other_,
          {0, each},
          [each, rank](std::int64_t at) { return contribution(0, each * rank + at); }};
}

void Bench::fill(const Trial& t) {
  for (std::int64_t at = 0; at < t.count; ++at)
    data_.set(at, contribution(c_.rank(), at));
  // Received data overwrites these numbers; gather sends them.
  for (std::int64_t at = 0; at < t.count; ++at)
    other_.set(at, contribution(c_.rank(), at));
}

std::int64_t Bench::wrong_numbers(const Trial& t) {
  fill(t);
  c_.barrier("filled")->wait();
  t.start()->wait();
  std::int64_t wrong = 0;
  for (std::int64_t at = t.part.offset; at < t.part.offset + t.part.count; ++at)
    wrong += t.result->get(at) == static_cast<float>(t.wanted(at)) ? 0 : 1;
  std::int64_t total = 0;
  for (const std::int64_t one : c_.gather_values(wrong, "wrong"))
    total += one;
  return total;
}

double Bench::microseconds(const Trial& t) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_of = [&](std::int64_t times) {
    c_.barrier("ready")->wait();
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < times; ++i)
      t.start()->wait();
    // Takes the slowest rank's time, so that all ranks also agree on the number of runs.
    return slowest(std::chrono::duration<double>(Clock::now() - begin).count()) /
           static_cast<double>(times);
  };
  static_cast<void>(seconds_of(2));
  const double expected = std::max(seconds_of(3), 1e-9);
  const double times = std::clamp(options_.rep * 1e-3 / expected, 5., 1e5);
  return seconds_of(static_cast<std::int64_t>(times)) * 1e6;
}

void Bench::measure(const std::string& name, std::int64_t count) {
  const Trial t = trial(name, count);
  Row row{.collective = name,
          .bytes = static_cast<std::size_t>(t.count) * size_of(dtype_),
          .count = t.count,
          .factor = t.factor};
  if (options_.checked) row.wrong = wrong_numbers(t);
  row.microseconds = microseconds(t);
  print(fmt::format("{:<15} {:>11} {:>11} {:>5} {:>11.1f} {:>9.2f} {:>9.2f} {:>7}\n", name,
                    row.bytes, row.count, name_of(dtype_), row.microseconds, row.algorithm_rate(),
                    row.bus_rate(), options_.checked ? fmt::to_string(row.wrong) : "-"));
  rows_.push_back(row);
}

nlohmann::ordered_json Bench::to_json() const {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Row& row : rows_) {
    rows.push_back({{"collective", row.collective},
                    {"bytes", row.bytes},
                    {"count", row.count},
                    {"type", name_of(dtype_)},
                    {"time_us", row.microseconds},
                    {"algorithm_gb_per_s", row.algorithm_rate()},
                    {"bus_gb_per_s", row.bus_rate()}});
    if (options_.checked) rows.back()["wrong"] = row.wrong;
  }
  return {{"program", "bench_collectives"},
          {"commit", commit()},
          {"transport", c_.backend()},
          {"ranks", c_.size()},
          {"threads", cpu::threads()},
          {"checked", options_.checked},
          {"rows", rows}};
}

int Bench::run() {
  // Checked first: rank 0 would leave the others waiting if only it failed at the end.
  if (c_.rank() == 0 && !options_.json.empty()) require_writable(options_.json);
  print(fmt::format("{} ranks, transport {}, {} threads each, signatures {}\n\n", c_.size(),
                    c_.backend(), cpu::threads(), options_.checked ? "compared" : "not compared"));
  print(fmt::format("{:<15} {:>11} {:>11} {:>5} {:>11} {:>9} {:>9} {:>7}\n", "collective", "bytes",
                    "count", "type", "time us", "alg GB/s", "bus GB/s", "wrong"));
  const std::size_t width = size_of(dtype_);
  for (const std::string& name : chosen_) {
    if (name == "barrier") {
      measure(name, 0);
      continue;
    }
    for (std::size_t bytes = std::max(smallest_, width); bytes <= largest_;
         bytes *= static_cast<std::size_t>(options_.factor))
      measure(name, static_cast<std::int64_t>(bytes / width));
  }
  std::int64_t wrong = 0;
  for (const Row& row : rows_)
    wrong += row.wrong;
  if (options_.checked) print(fmt::format("{} elements are wrong\n", wrong));
  if (c_.rank() == 0 && !options_.json.empty()) write_file(options_.json, to_json().dump(1) + "\n");
  c_.barrier("end")->wait();
  return wrong > 0 ? 1 : 0;
}

std::vector<std::string> chosen_collectives(const std::string& list) {
  const std::vector<std::string> known{"all_reduce",     "reduce", "broadcast", "all_gather",
                                       "reduce_scatter", "gather", "scatter",   "p2p",
                                       "barrier"};
  if (list.empty()) return known;
  std::vector<std::string> chosen;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    chosen.push_back(list.substr(begin, end - begin));
    if (std::ranges::find(known, chosen.back()) == known.end())
      fail(
          fmt::format("--collective: '{}' is not one of {}", chosen.back(), fmt::join(known, ", ")),
          ErrorKind::usage);
    begin = end + 1;
  }
  return chosen;
}

int run(const Options& o) {
  const auto chosen = chosen_collectives(o.collectives);
  if (parse_size("--min-bytes", o.min_bytes) > parse_size("--max-bytes", o.max_bytes))
    fail("--min-bytes is above --max-bytes", ErrorKind::usage);
  const auto run_rank = [&](std::shared_ptr<Transport> transport, int cores) {
    cpu::set_threads(o.threads > 0 ? static_cast<int>(o.threads) : std::max(1, cores));
    Communicator c(std::move(transport), nullptr, {.checked = o.checked});
    return Bench(o, chosen, c).run();
  };
  if (launched_rank() >= 0) {
    if (o.ranks != 0)
      fail("--ranks is for threads: mpirun -n says how many there are", ErrorKind::usage);
    MpiProcess process;
    return run_rank(process.world(), process.cores());
  }
  const int ranks = static_cast<int>(std::max<std::int64_t>(1, o.ranks));
  int exit_code = 0;
  run_on_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    const bool first = transport->rank() == 0;
    const int code = run_rank(std::move(transport), cpu::available_cores() / ranks);
    if (first) exit_code = code;  // same on all ranks: wrong elements are summed over them
  });
  return exit_code;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::run_program("bench_collectives", [&] {
    sluice::bench::Options options;
    sluice::CommandLine line("bench_collectives",
                             "Times the operations of several ranks, in the manner of nccl-tests: "
                             "`mpirun -n 2 bench_collectives`. Without mpirun ranks are threads.");
    sluice::bench::declare(line, options);
    return line.parse(argc, argv) ? sluice::bench::run(options) : 0;
  });
}
