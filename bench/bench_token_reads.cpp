// Times how a rank gets its sequences out of a token file: mpirun -n 2 bench_token_reads --data
// t.bin.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "apps/cli/command_line.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/cli/version.h"
#include "bench/kernels/report.h"
#include "engine/io/token_file.h"
#include "kernels/base/error.h"
#include "parallel/comm/transport/mpi_file.h"
#include "parallel/comm/world.h"

namespace sluice::bench {
namespace {

struct Options {
  std::string data, json;
  std::int64_t sequences = 4096, seq_len = 1024, rounds = 5;
};

void declare(CommandLine& line, Options& o) {
  line.add("--data", o.data, "File of uint16 ids without a header, as prepare_data writes");
  line.require("--data");
  line.add("--sequences", o.sequences, "That each rank reads in a round", 1, 1 << 24);
  line.add("--seq-len", o.seq_len, "Tokens of a sequence", 1, 1 << 20);
  line.add("--rounds", o.rounds, "The ways take turns", 1, 1000);
  add_json_output(line, o.json, "Write all figures here");
}

/// The whole file in the address space.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const off_t end = file < 0 ? -1 : ::lseek(file, 0, SEEK_END);
    if (end > 0) {
      size_ = static_cast<std::size_t>(end);
      start_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    }
    if (file >= 0) ::close(file);
    if (start_ == MAP_FAILED) fail(fmt::format("{} cannot be mapped", path));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(start_, size_); }
  const std::byte* at(std::uint64_t byte) const {
    return static_cast<const std::byte*>(start_) + byte;
  }

 private:
  void* start_ = MAP_FAILED;
  std::size_t size_ = 0;
};

/// A way to read the tokens from a position on. All give the same ones.
struct Way {
  const char* name;
  std::function<void(std::uint64_t position, std::span<std::int32_t> out)> read;
  std::vector<double> rates{};  ///< tokens per second of each round, of this rank
};

void widen(std::span<const std::byte> stored, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t id;
    std::memcpy(&id, stored.data() + 2 * i, sizeof id);
    out[i] = id;
  }
}

/// Reads the sequences of this rank and returns the sum of their ids.
std::int64_t read_all(const Way& way, const std::vector<std::uint64_t>& positions,
                      std::vector<std::int32_t>& ids) {
  std::int64_t sum = 0;
  for (const std::uint64_t position : positions) {
    way.read(position, ids);
    sum = std::accumulate(ids.begin(), ids.end(), sum);
  }
  return sum;
}

void run(const Options& o, const World& world) {
  if (!o.json.empty() && world.rank() == 0) require_writable(o.json);
  TokenFile checked(o.data), plain(o.data);
  if (checked.has_header() || checked.id_bytes() != 2)
    fail("--data: give a file of uint16 ids without a header", ErrorKind::usage);
  const auto length = static_cast<std::size_t>(o.seq_len) + 1;
  if (checked.size() < length)
    fail(fmt::format("--seq-len {}: {} has {} tokens", o.seq_len, o.data, checked.size()),
         ErrorKind::usage);
  checked.read_all(65536);
  const Mapping mapping(o.data);
  std::vector<std::byte> stored(2 * length);
  std::vector<Way> ways{
      {"pread, page by page with its checksum (train_gpt2)",
       [&](std::uint64_t position, std::span<std::int32_t> out) { checked.read(position, out); }},
      {"pread", [&](auto position, auto out) { plain.read(position, out); }},
      {"mapped file", [&](auto position, auto out) {
         widen({mapping.at(2 * position), stored.size()}, out);
       }}};
  std::optional<MpiFile> file;
  if (world.size() > 1) {
    file.emplace(o.data, MpiFile::Access::read);
    ways.push_back({"MPI_File_read_at_all", [&](auto position, auto out) {
                      file->read(2 * position, stored, stored.size());
                      widen(stored, out);
                    }});
  }
  const auto ranks = world.communicator({}, {});
  std::mt19937_64 draw(7 + static_cast<std::uint64_t>(world.rank()));
  std::vector<std::uint64_t> positions(static_cast<std::size_t>(o.sequences));
  for (std::uint64_t& position : positions)
    position = draw() % (checked.size() - length + 1);
  std::vector<std::int32_t> ids(length);
  const std::int64_t expected = read_all(ways[0], positions, ids);
  for (std::int64_t round = 0; round < o.rounds; ++round)
    for (Way& way : ways) {
      ranks->barrier("round")->wait();
      const Stopwatch watch;
      if (read_all(way, positions, ids) != expected)
        fail(fmt::format("{} gives other tokens", way.name));
      way.rates.push_back(static_cast<double>(length * positions.size()) /
                          (watch.milliseconds() * 1e-3));
    }
  nlohmann::ordered_json rows = nlohmann::json::array();
  for (Way& way : ways) {
    std::ranges::sort(way.rates);
    const double median = way.rates[way.rates.size() / 2];
    rows.push_back({{"way", way.name}, {"median", median}, {"runs", way.rates}});
    say(fmt::format("{:<52} {:8.1f} M tokens/s a rank ({:.1f} to {:.1f})\n", way.name, median / 1e6,
                    way.rates.front() / 1e6, way.rates.back() / 1e6));
  }
  if (o.json.empty() || world.rank() > 0) return;
  const nlohmann::ordered_json figures{
      {"program", "bench_token_reads"}, {"commit", commit()},       {"ranks", world.size()},
      {"seq_len", o.seq_len},           {"sequences", o.sequences}, {"tokens_per_second", rows}};
  bench::write_file(o.json, figures.dump(1) + "\n");
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::run_ranks("bench_token_reads", [&](const sluice::World& world) {
    sluice::bench::Options options;
    sluice::CommandLine line("bench_token_reads",
                             "Times how a rank gets its sequences out of a token file.");
    sluice::bench::declare(line, options);
    if (line.parse(argc, argv)) sluice::bench::run(options, world);
  });
}
