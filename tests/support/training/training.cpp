#include "tests/support/training/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <regex>

#include "engine/autograd.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"
#include "tests/support/training/options.h"

namespace sluice::test {
namespace {

HostMemory host_for(const MemoryChoice& choice, const DevicePtr& device, HostMemory given) {
  if (given.pinned || given.file ||
      !(choice.offloads_state() || choice.offloads_inputs() || choice.offloads_weights()))
    return given;
  constexpr std::size_t plenty = std::size_t{16} << 20;
  const bool by_cpu = choice.count(Residency::cpu) > 0 || choice.offloads_weights();
  return make_host_memory(device, plenty, by_cpu ? plenty : 0);
}

}  // namespace

TrainConfig TrainingTask::options() const {
  TrainConfig o = parsed(fmt::format(
      "--optimizer {} --bucket-size {} --pipeline-split {} --stash {}{}", optimizer, bucket_size,
      pipeline_split, stash,
      pipeline.empty() ? ""
                       : " --pipeline " + pipeline +
                             (virtual_stages > 1 ? fmt::format("*{}", virtual_stages) : "")));
  o.model.n_layer = config.n_layer;
  o.model.n_head = config.n_head;
  o.model.n_embd = config.n_embd;
  o.batch.size = batch_size;
  o.batch.seq_len = seq_len;
  o.optimizer.grad_clip = grad_clip;
  o.model.dropout = dropout;
  o.evaluation.sample_tokens = 0;
  o.parallel.zero = zero;
  o.parallel.overlap = overlap;
  o.parallel.dp = dp;
  o.parallel.pp = pp;
  o.parallel.tp = tp;
  o.parallel.sequence_parallel = sequence_parallel;
  return o;
}

RunSetup TrainingTask::setup(DeviceKind kind) const {
  RunSetup setup;
  setup.config = config;
  setup.device = kind;
  setup.precision = {.dtype = dtype, .loss_scaling = dtype == DType::f16};
  setup.schedule = {.kind = ScheduleKind::linear,
                    .rate = rate,
                    .final_rate = rate / 10,
                    .warmup = 3,
                    .updates = 30};
  setup.trainer = {.batch_size = batch_size,
                   .micro_batch = 1,
                   .seq_len = seq_len,
                   .grad_clip = grad_clip,
                   .dropout = {dropout, dropout, dropout},
                   .seed = 5,
                   .loss_scaling = dtype == DType::f16,
                   .graphs = cuda_graph};
  return setup;
}

RunSetup TrainingTask::setup(DeviceKind kind, const MemoryChoice& choice) const {
  RunSetup all = setup(kind);
  all.pipeline = plan_pipeline(options(), config, choice.micro_batch, kind);
  return all;
}

Batch TrainingTask::batch(std::int64_t step) const {
  // A few batches in turn, so that they are learnt and gradients become smaller and larger again.
  const auto seed = static_cast<std::uint64_t>(step % 3 + 100);
  const auto count = static_cast<std::size_t>(batch_size * seq_len);
  const auto vocabulary = static_cast<std::int32_t>(config.vocab_size);
  return {{.tokens = random_ids(count, vocabulary, seed),
           .targets = random_ids(count, vocabulary, seed + 50)},
          step * batch_size};
}

DecoderConfig small_model(const char* name, std::int64_t blocks) {
  DecoderConfig config = *preset(name);
  config.n_layer = blocks;
  config.n_head = 4;
  if (config.n_kv_head > 0) config.n_kv_head = 2;
  config.n_embd = 64;
  config.head_width = 0;
  config.n_inner = 128;
  config.vocab_size = 64;
  config.n_positions = 16;
  if (config.rotary->width > 0) config.rotary->width = 8;
  return config;
}

MemoryChoice TrainingTask::resident(StateLayout layout, std::int64_t micro_batch) const {
  return {.micro_batch = micro_batch,
          .placement = {.blocks = std::vector<Placement>(static_cast<std::size_t>(config.n_layer))},
          .layout = layout};
}

MemoryChoice offloaded(MemoryChoice choice, std::int64_t resident, std::int64_t chunk, int staging,
                       std::int64_t by_cpu, std::int64_t speculative) {
  std::vector<Residency> all(choice.placement.blocks.size(), Residency::streamed);
  std::fill_n(all.begin(), resident, Residency::device);
  std::fill_n(all.rbegin(), by_cpu + speculative, Residency::speculative);
  std::fill_n(all.rbegin(), by_cpu, Residency::cpu);
  choice.placement.set_residency(all);
  choice.staging = {.chunk = chunk, .places = staging};
  return choice;
}

MemoryChoice with_weights_offloaded(MemoryChoice choice, std::int64_t blocks, bool embeddings) {
  std::vector<Residency> all = choice.placement.residency();
  std::fill_n(all.rbegin(), blocks, Residency::host);
  choice.placement.set_residency(all);
  choice.placement.offload_embeddings = embeddings;
  return choice;
}

MemoryChoice recomputing(MemoryChoice choice, const std::string& modes) {
  const std::string text = "auto:" + std::regex_replace(modes, std::regex(","), ",auto:");
  choice.placement.set_recompute(*parse_placement(text, choice.layers()).recompute);
  return choice;
}

Batch share_of(const Batch& batch, int rank, int ranks, std::int64_t rows) {
  const auto count = batch.tokens.size() / static_cast<std::size_t>(ranks);
  const auto part = [&](const std::vector<std::int32_t>& ids) {
    const auto from = ids.begin() + static_cast<std::ptrdiff_t>(count) * rank;
    return std::vector(from, from + static_cast<std::ptrdiff_t>(count));
  };
  return {{.tokens = part(batch.tokens),
           .targets = part(batch.targets),
           .documents = batch.documents.part(static_cast<std::int64_t>(count) * rank,
                                             static_cast<std::int64_t>(count))},
          batch.first_sequence + rank * rows / ranks,
          batch.counted};
}

std::string first_difference(const RunBits& a, const RunBits& b) {
  if (a.steps.size() != b.steps.size())
    return fmt::format("{} and {} steps", a.steps.size(), b.steps.size());
  for (std::size_t step = 0; step < a.steps.size(); ++step)
    for (std::size_t i = 0; i < a.steps[step].size(); ++i) {
      const double left = a.steps[step][i], right = b.steps[step].at(i);
      if (std::bit_cast<std::uint64_t>(left) != std::bit_cast<std::uint64_t>(right))
        return fmt::format("number {} of step {}: {} and {}", i, step, left, right);
    }
  if (a.values.size() != b.values.size())
    return fmt::format("{} and {} arrays", a.values.size(), b.values.size());
  for (const auto& [name, bytes] : a.values) {
    const auto other = b.values.find(name);
    if (other == b.values.end()) return name + " is only in one";
    const auto [at, unused] =
        std::mismatch(bytes.begin(), bytes.end(), other->second.begin(), other->second.end());
    if (at != bytes.end() || bytes.size() != other->second.size())
      return fmt::format("{} from byte {} of {} on", name, at - bytes.begin(), bytes.size());
  }
  return "";
}

TrainingRun::TrainingRun(const TrainingTask& task, const MemoryChoice& choice,
                         const DevicePtr& device, HostMemory memory, const Ranks& ranks)
    : task_(task),
      device_(device),
      host_(host_for(choice, device, std::move(memory))),
      training_(task.options(), task.setup(device->device().kind, choice), choice, device, host_,
                ranks) {
  training_.space.initialize(11);
  if (!training_.frozen) return;
  training_.frozen->initialize(11);
  // Matrices B begin as zeros, with which A has no gradients.
  for (const auto& slot : training_.space.slots()) {
    if (slot.initial.standard_deviation > 0) continue;
    const Shape& whole = slot.whole();
    const Values values =
        random_values(element_count(whole), std::hash<std::string>()(slot.name), 0.1);
    std::vector<std::byte> bytes = bytes_of(
        Tensor::from_host(make_cpu_device(), whole, training_.space.weight_dtype(), values));
    training_.space.write_shard(slot, 0, bytes);
  }
}

const TrainStep& TrainingRun::step() {
  const Ranks& ranks = training_.ranks;
  steps_.push_back(training_.trainer.step(
      step_, share_of(task_.batch(step_), ranks.replica(), ranks.mesh.dp, task_.batch_size)));
  ++step_;
  return steps_.back();
}

RunBits TrainingRun::train(std::int64_t steps) {
  for (std::int64_t i = 0; i < steps; ++i)
    step();
  return bits();
}

std::vector<double> TrainingRun::accumulate(const Batch& batch, std::int64_t step,
                                            std::int64_t micro_batch) {
  const auto count = static_cast<std::size_t>(micro_batch * task_.seq_len);
  DropoutSource dropout{.seed = task_.setup(device_->device().kind).trainer.seed,
                        .step = static_cast<std::uint64_t>(step),
                        .first_sample = batch.first_sequence,
                        .probability = static_cast<float>(task_.dropout)};
  std::vector<double> losses;
  for (std::size_t first = 0; first < batch.tokens.size(); first += count) {
    const auto part = [&](const std::vector<std::int32_t>& ids) {
      return Tensor::from_tokens(device_, {micro_batch, task_.seq_len},
                                 std::span(ids).subspan(first, count));
    };
    const Tensor loss =
        training_.model
            .loss(part(batch.tokens), part(batch.targets),
                  {.scale = 1.0 / static_cast<double>(task_.batch_size * task_.seq_len)}, dropout)
            .loss;
    losses.push_back(loss.item());
    backward(loss);
    dropout.first_sample += micro_batch;
  }
  return losses;
}

void merge(Communicator& ranks, std::span<std::byte> data) {
  const auto all = ranks.gather_values<std::byte>(data, "bits");
  for (std::size_t i = 0; i < all.size(); ++i)
    data[i % data.size()] |= all[i];
}

RunBits TrainingRun::bits() {
  Optimizer& optimizer = *training_.optimizer;
  training_.parallel.optimizer.synchronize();
  const auto complete = [&](std::span<std::byte> out) { merge(*training_.ranks.dp_host, out); };
  RunBits bits;
  const auto read = [&](const auto& slot, std::span<std::byte> out) {
    training_.space.read_weights(slot.offset, out);
    complete(out);
  };
  bits.values["weights"] =
      bytes_of(flat_copy(training_.space, training_.space.weight_dtype(), read));
  const FlatBuffer& working = training_.space.working();
  bits.values["working weights"] =
      bytes_of(flat_copy(training_.space, working.dtype(), [&](const auto& slot, auto out) {
        working.kept(slot.offset, {slot.size}).copy_bytes_to(out);
      }));
  for (const auto& slot : training_.space.slots()) {
    const auto fields = optimizer.fields(slot);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      auto& bytes = bits.values[fmt::format("{} of {}", fields[i].name, slot.name)];
      bytes.resize(static_cast<std::size_t>(fields[i].count) * size_of(fields[i].dtype));
      // The field is read in two pieces with their border inside a chunk.
      const std::int64_t first = fields[i].count / 3;
      const std::size_t border = static_cast<std::size_t>(first) * size_of(fields[i].dtype);
      optimizer.read_state(slot, i, 0, std::span(bytes).first(border));
      optimizer.read_state(slot, i, first, std::span(bytes).subspan(border));
      complete(bytes);
    }
  }
  for (const TrainStep& s : steps_)
    bits.steps.push_back(
        {s.loss, s.gradient_norm, s.rate, s.loss_scale, static_cast<double>(s.applied)});
  bits.steps.push_back({static_cast<double>(optimizer.updates())});
  return bits;
}

void TrainingRun::set_weight(const std::string& name, std::int64_t element, float value) {
  training_.optimizer->synchronize();
  training_.space.write_weights(training_.space.find(name)->offset + element,
                                std::as_bytes(std::span(&value, 1)));
}

}  // namespace sluice::test
