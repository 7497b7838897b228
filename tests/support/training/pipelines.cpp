#include "tests/support/training/pipelines.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "apps/plan/memory_plan.h"
#include "parallel/comm/backend/staged_backend.h"
#include "parallel/comm/transport/thread_transport.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"

namespace sluice::test {

void on_mesh(const TrainingTask& task, const MemoryChoice& choice, DeviceKind kind,
             const RankOfMesh& body, const MeshOptions& mesh_options) {
  const Mesh mesh = task.options().parallel.mesh();
  run_on_threads(mesh.size(), [&](std::unique_ptr<Transport> made) {
    const ThreadCount one(1);
    const std::shared_ptr<Transport> transport(std::move(made));
    Communicator::Options options{.timeout = mesh_options.timeout,
                                  .together = std::make_shared<Progress>()};
    const std::shared_ptr<Monitor> monitor =
        mesh_options.monitor ? mesh_options.monitor(transport->rank()) : nullptr;
    const DevicePtr device = device_of_rank(kind, transport->rank());
    const auto make = [&](const Group& group) -> std::shared_ptr<Communicator> {
      if (group.members.size() == 1) return Communicator::planned(1, 0);
      const std::shared_ptr<Transport> part = transport->subgroup(group.members, group.id);
      Communicator::Options options_of_group = options;
      options_of_group.name = group.name;
      if (group.largest == 0 || kind == DeviceKind::cpu)
        return std::make_shared<Communicator>(part, monitor, options_of_group);
      return std::make_shared<Communicator>(make_staged_backend(part, device, group.largest), part,
                                            monitor, options_of_group);
    };
    const auto control = std::make_shared<Communicator>(transport, monitor, options);
    const Ranks ranks =
        make_ranks(control, mesh, kind == DeviceKind::cuda,
                   largest_exchanges(task.options(), task.setup(kind, choice), choice, mesh), make);
    body(ranks, device);
  });
}

RunBits bits_by_name(TrainingRun& run) {
  Training& training = run.training();
  training.parallel.optimizer.synchronize();
  const auto complete = [&](std::span<std::byte> out) { merge(*training.ranks.dp_host, out); };
  RunBits bits;
  for (const auto& slot : training.space.slots()) {
    const auto room = [&](std::string_view what, std::int64_t count, DType dtype) {
      auto& bytes = bits.values[fmt::format("{} of {}", what, slot.name)];
      bytes.resize(static_cast<std::size_t>(count) * size_of(dtype));
      return std::span(bytes);
    };
    const auto weights = room("weights", slot.size, training.space.weight_dtype());
    training.space.read_weights(slot.offset, weights);
    complete(weights);
    const FlatBuffer& working = training.space.working();
    working.kept(slot.offset, {slot.size})
        .copy_bytes_to(room("working weights", slot.size, working.dtype()));
    const auto fields = training.optimizer->fields(slot);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const auto state = room(fields[i].name, fields[i].count, fields[i].dtype);
      training.optimizer->read_state(slot, i, 0, state);
      complete(state);
    }
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

std::vector<std::string> unplanned_memory(const TrainingTask& task, const MemoryChoice& choice) {
  RunSetup setup = task.setup(DeviceKind::cpu, choice);
  // More batches of validation than the plan counts: what they need was in it all the same.
  TrainConfig options = task.options();
  options.evaluation.val_steps = 1 << 20;
  const std::int64_t tokens =
      by_form(6, 18) * EvaluationBatches::rows_for(task.seq_len) * task.seq_len;
  setup.data.val = tokens_in_memory(random_ids(
      static_cast<std::size_t>(tokens + 1), static_cast<std::int32_t>(task.config.vocab_size), 3));
  const EvaluationBatches batches = validation_batches(options, setup);
  std::vector<std::string> wrong;
  std::mutex mutex;
  on_mesh(task, choice, DeviceKind::cpu, [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, ranks);
    const auto plan = [&] {
      const std::lock_guard lock(mutex);
      return plan_memory(options, setup, choice, 0, {ranks.mesh, ranks.rank()});
    }();
    run.step();
    run.training().trainer.evaluate(*setup.data.val, batches);
    run.step();
    const std::size_t steps = device->arena().peak(), all = device->arena().high_water();
    const std::lock_guard lock(mutex);
    if (steps != plan.peak)
      wrong.push_back(
          fmt::format("rank {}: {} of {} bytes in steps", ranks.rank(), steps, plan.peak));
    if (all > plan.high_water)
      wrong.push_back(
          fmt::format("rank {}: {} of {} bytes reserved", ranks.rank(), all, plan.high_water));
  });
  return wrong;
}

}  // namespace sluice::test
