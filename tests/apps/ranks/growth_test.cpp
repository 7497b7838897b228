// Real runs of 2, 4 and 8 ranks tell which operations a job has. Many simulated ranks run these
// over a simulated network, and show what a job costs when it grows.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "parallel/comm/communicator.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/parallel/many_ranks/simulated_network.h"
#include "tests/support/catch.h"
#include "tests/support/training/ranks.h"

namespace sluice::test::growth_test {
namespace {

/// An operation of all ranks, with `fixed + per_rank * ranks` elements.
struct Growing {
  Signature signature;
  std::int64_t fixed = 0, per_rank = 0;

  std::int64_t count(int ranks) const { return fixed + per_rank * ranks; }
};

/// Returns the operations of a run with a sequence a rank in the batch, without those on gradients.
std::vector<Signature> operations_of(const RankRuns& runs, int ranks) {
  const std::string name = fmt::format("of {}", ranks);
  runs.run_well(ranks, name,
                {{"--rank-files", runs.at(name + ".ranks")},
                 {"--batch-size", std::to_string(ranks)},
                 {"--micro-batch", "1"},
                 {"--steps", "3"},
                 {"--save", "never"},
                 {"--save-every", "-"}});
  std::vector<Signature> operations;
  const auto record = read_record(record_path(runs.at(name + ".ranks"), 0));
  REQUIRE(record);
  // The record keeps the last ones only.
  REQUIRE(record->operations.size() < FlightRecorder::operations_kept);
  for (const auto& operation : record->operations)
    if (!operation.signature.label_text().starts_with("gradients")) {
      REQUIRE(operation.communicator == "world");
      operations.push_back(operation.signature);
    }
  return operations;
}

/// Returns the operations of a job, whose sizes grow with the number of ranks as they do from 2
/// ranks to 4. Those of 8 have to fit.
std::vector<Growing> growing_operations(const RankRuns& runs) {
  const auto of_2 = operations_of(runs, 2), of_4 = operations_of(runs, 4),
             of_8 = operations_of(runs, 8);
  REQUIRE(of_2.size() == of_4.size());
  REQUIRE(of_2.size() == of_8.size());
  std::vector<Growing> all;
  for (std::size_t i = 0; i < of_2.size(); ++i) {
    INFO(to_string(of_2[i]));
    const std::int64_t per_rank = (of_4[i].count - of_2[i].count) / 2;
    all.push_back({of_2[i], of_2[i].count - 2 * per_rank, per_rank});
    for (const auto& [ranks, other] : {std::pair(4, of_4[i]), {8, of_8[i]}}) {
      Signature expected = of_2[i];
      expected.sequence = other.sequence;  // there are more gradients in other buckets
      expected.count = all.back().count(ranks);
      REQUIRE(to_string(other) == to_string(expected));
      REQUIRE(other.any_order == expected.any_order);
    }
  }
  return all;
}

/// Does an operation with data that is zero. All ranks have it in one place, which saves 7 GB for
/// 10,000 of them.
void repeat(Communicator& ranks, const Growing& operation) {
  const Signature& s = operation.signature;
  const std::int64_t count = operation.count(ranks.size());
  static std::vector<std::byte> data(std::size_t{16} << 20);
  check(static_cast<std::size_t>(count) * size_of(s.dtype) <= data.size(),
        "the place is too small");
  const View view{data.data(), s.dtype, {count}};
  const CallOptions options{.label = s.label_text(), .any_order = s.any_order};
  switch (s.kind) {
    case Collective::all_reduce:
      return ranks.all_reduce(view, options)->wait();
    case Collective::broadcast:
      return ranks.broadcast(view, s.root, options)->wait();
    case Collective::all_gather:
      return ranks.all_gather(view, equal_parts(count / ranks.size(), ranks.size()), options)
          ->wait();
    case Collective::barrier:
      return ranks.barrier(s.label_text())->wait();
    default:
      fail("the simulation does not know " + to_string(s));
  }
}

/// The most that any rank has sent, and the simulated seconds.
struct Cost {
  std::int64_t messages = 0, bytes = 0;
  double seconds = 0;

  void include(const Traffic& from, const Traffic& to) {
    messages = std::max(messages, to.messages - from.messages);
    bytes = std::max(bytes, to.bytes - from.bytes);
    seconds = std::max(seconds, to.seconds - from.seconds);
  }
};
struct Costs {
  Cost setup, step;
};

/// Runs the job on `ranks` simulated ranks. Set-up is all before the first step's losses.
Costs costs_of(const std::vector<Growing>& job, int ranks, const Network& network) {
  const auto is_loss = [](const Growing& one) { return one.signature.label_text() == "losses"; };
  const auto first = std::ranges::find_if(job, is_loss);
  const auto second = std::find_if(first + 1, job.end(), is_loss);
  Costs costs;
  run_simulated(ranks, network, [&](SimulatedRank& rank) {
    Communicator all(rank.world(), nullptr, {.name = "world", .timeout = 600});
    const auto run = [&](auto from, auto to) {
      for (; from != to; ++from)
        repeat(all, *from);
    };
    run(job.begin(), first);
    const Traffic before = rank.traffic();
    costs.setup.include({}, before);
    run(first, second);
    costs.step.include(before, rank.traffic());
  });
  return costs;
}

/// A network of 5 us and 10 GB/s, as the table in docs/results/scaling.md has it.
const Network network{.latency = 5e-6, .bytes_per_second = 10e9, .gap = 0.5e-6};

}  // namespace

TEST_CASE("the messages of a job grow with the logarithm of its ranks") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const auto job = growing_operations(runs);
  for (const int ranks : {64, 1000}) {
    CAPTURE(ranks);
    const auto rounds = std::bit_width(static_cast<unsigned>(ranks) - 1);
    const Costs costs = costs_of(job, ranks, network);
    CHECK(costs.step.messages <= 20 + 4 * rounds);
    // Data and signatures.
    CHECK(costs.setup.messages <= static_cast<std::int64_t>(job.size()) * 2 * rounds);
    // Several latencies a round at most, for each operation: nothing waits for all ranks in turn.
    CHECK(costs.setup.seconds <
          static_cast<double>(job.size()) * rounds * 6 * (network.latency + network.gap));
  }
}

TEST_CASE("the table of how a job grows", "[.table]") {
  const RankRuns runs;
  const auto job = growing_operations(runs);
  fmt::print("operations of all ranks: {}\n\n", job.size());
  fmt::print("| ranks | set-up: messages | KB | ms | a step: messages | KB | ms |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const int ranks : {2, 8, 64, 1000, 10000}) {
    const auto [setup, step] = costs_of(job, ranks, network);
    fmt::print("| {} | {} | {:.1f} | {:.2f} | {} | {:.1f} | {:.3f} |\n", ranks, setup.messages,
               static_cast<double>(setup.bytes) / 1000, setup.seconds * 1000, step.messages,
               static_cast<double>(step.bytes) / 1000, step.seconds * 1000);
  }
  // Comparing signatures adds to the time of an operation.
  for (const int ranks : {64, 1000, 10000}) {
    std::array<double, 2> seconds{};
    for (const bool checked : {false, true})
      run_simulated(ranks, network, [&](SimulatedRank& rank) {
        Communicator all(rank.world(), nullptr,
                         {.name = "world", .timeout = 600, .checked = checked});
        all.barrier("one")->wait();
        seconds[checked] = std::max(seconds[checked], rank.traffic().seconds);
      });
    fmt::print("{} ranks: a barrier {:.3f} ms, with signatures {:.3f} ms\n", ranks,
               seconds[0] * 1000, seconds[1] * 1000);
  }
  SUCCEED("printed");
}

}  // namespace sluice::test::growth_test
