#include "tests/support/pipelines.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <mutex>

#include "parallel/staged_backend.h"
#include "parallel/thread_transport.h"
#include "tests/support/gpu.h"
#include "tests/support/gradcheck.h"

namespace sluice::test {
namespace {

DevicePtr device_of(DeviceKind kind, int rank) {
  return kind == DeviceKind::cuda ? open_gpu(static_cast<std::uint64_t>(rank) + 1, memory_of_rank)
                                  : make_cpu_device(memory_of_rank);
}

}  // namespace

void on_mesh(const TrainingTask& task, const MemoryChoice& choice, DeviceKind kind,
             const RankOfMesh& body, double timeout) {
  const Mesh mesh{.dp = static_cast<int>(task.dp.value_or(1)), .pp = static_cast<int>(task.pp)};
  run_on_threads(mesh.size(), [&](std::unique_ptr<Transport> made) {
    const ThreadCount one(1);
    const std::shared_ptr<Transport> transport(std::move(made));
    const int rank = transport->rank(), replica = mesh.replica(rank);
    const Communicator::Options options{
        .timeout = timeout, .checked = true, .together = std::make_shared<Progress>()};
    const DevicePtr device = device_of(kind, rank);
    const RunSetup setup = task.setup(kind, choice);
    const std::size_t largest = largest_exchange(task.options(), setup, choice, mesh.dp);
    const std::size_t boundary = boundary_bytes(setup, choice);
    // In host memory where no bytes are given.
    const auto group = [&](std::span<const int> members, std::uint64_t id, std::size_t bytes) {
      if (members.size() == 1) return std::shared_ptr<Communicator>(Communicator::planned(1, 0));
      const std::shared_ptr<Transport> part = transport->subgroup(members, id);
      if (bytes == 0 || kind == DeviceKind::cpu)
        return std::make_shared<Communicator>(part, nullptr, options);
      return std::make_shared<Communicator>(make_staged_backend(part, device, bytes), part, nullptr,
                                            options);
    };
    const auto peers = mesh.peers(mesh.stage(rank));
    Ranks ranks{.control = std::make_shared<Communicator>(transport, nullptr, options), .data = {}};
    ranks.data = ranks.control;
    if (task.options().pipelined()) {
      ranks.pipelined = {mesh, group(peers, 2, 0),
                         [=](std::span<const int> places, std::uint64_t id, const std::string&) {
                           std::vector<int> members;
                           for (const int place : places)
                             members.push_back(mesh.rank(replica, place));
                           return group(members, 16 + id, boundary);
                         }};
      ranks.data = ranks.pipelined->peers;
    }
    if (kind == DeviceKind::cuda) ranks.data = group(peers, 1, largest);
    body(ranks, device);
  });
}

RunBits bits_by_name(TrainingRun& run) {
  Training& training = run.training();
  ShardedOptimizer& sharded = training.parallel.optimizer;
  sharded.settle();
  RunBits bits;
  for (const auto& slot : training.space.slots()) {
    const auto room = [&](std::string_view what, std::int64_t count, DType dtype) {
      auto& bytes = bits.values[fmt::format("{} of {}", what, slot.name)];
      bytes.resize(static_cast<std::size_t>(count) * size_of(dtype));
      return std::span(bytes);
    };
    sharded.read_weights(slot.offset, room("weights", slot.size, training.space.weight_dtype()));
    const Tensor& working = training.space.working();
    working.slice(slot.offset, {slot.size})
        .copy_bytes_to(room("working weights", slot.size, working.dtype()));
    const auto fields = training.optimizer->fields(slot);
    for (std::size_t i = 0; i < fields.size(); ++i)
      sharded.read_state(slot, i, 0, room(fields[i].name, fields[i].count, fields[i].dtype));
  }
  for (const TrainStep& s : run.steps())
    bits.steps.push_back(
        {s.loss, s.gradient_norm, s.rate, s.loss_scale, static_cast<double>(s.applied)});
  return bits;
}

RunBits train_pipelined(const TrainingTask& task, const MemoryChoice& choice, std::int64_t steps,
                        DeviceKind kind) {
  RunBits all;
  std::vector<std::string> differences;
  std::mutex mutex;
  on_mesh(task, choice, kind, [&](const Ranks& ranks, const DevicePtr& device) {
    // Memory is not zero where something else has been before.
    const std::vector<std::byte> dirt(std::size_t{4} << 20, std::byte{0xFF});
    Tensor::empty(device, {std::int64_t{4} << 20}, DType::u8).copy_bytes_from(dirt);
    TrainingRun run(task, choice, device, {}, ranks);
    for (std::int64_t i = 0; i < steps; ++i)
      run.step();
    const RunBits mine = bits_by_name(run);
    run.training().require_equal_copies("at the end");
    const std::lock_guard lock(mutex);
    if (all.steps.empty()) all.steps = mine.steps;
    if (all.steps != mine.steps) differences.emplace_back("steps");
    if (ranks.replica() > 0) return;  // with --zero 1 the first replica alone has all state
    for (const auto& [name, bytes] : mine.values)
      if (const auto [at, made] = all.values.emplace(name, bytes); !made && at->second != bytes)
        differences.push_back(name);
  });
  CHECK(differences == std::vector<std::string>());
  return all;
}

}  // namespace sluice::test
