#include "apps/train/training.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "apps/data/encode_text.h"
#include "apps/train/adapters.h"
#include "optim/make_optimizer.h"
#include "parallel/data_parallel/replicas.h"

namespace sluice {
namespace {

SpaceOptions space_options(const TrainConfig& o, const MemoryChoice& choice,
                           const HostMemory& host) {
  SpaceOptions options{.layout = choice.layout,
                       .narrow_gradients = choice.narrow_gradients,
                       .chunk = choice.staging.chunk,
                       .cpu_tables = choice.placement.offload_embeddings,
                       .host = host,
                       .whole_tensors = takes_whole_tensors(o.optimizer.kind)};
  options.residency.resize(Decoder::section_of(0), Residency::device);
  std::ranges::copy(choice.placement.residency(), std::back_inserter(options.residency));
  return options;
}

/// Sums of Muon over the ranks that divide the matrices; none for one rank. The groups of replicas
/// add up in one order, but for NCCL, which may choose another order for each. Replicas that update
/// the same matrices therefore take the sums of the first one, so that their weights are equal.
SumOverRanks sum_over(CommunicatorGroup* group, const DevicePtr& device, const Ranks& ranks,
                      bool shares_updates) {
  if (group == nullptr) return {};
  const std::shared_ptr<Communicator> replicas = ranks.dp_device;
  const bool adopts =
      replicas->size() > 1 && !shares_updates && ranks.tp_device->backend() == "nccl";
  return [=](const View& data, bool one_has, Stream stream) {
    constexpr std::string_view what = "orthogonalization";
    group->sum(data, device, one_has, what);
    if (adopts && !one_has) replicas->broadcast(data, 0, {.label = what, .stream = stream})->join();
  };
}

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& o, const RunSetup& setup,
                                          ParameterSpace& space, int places, const Ranks& ranks,
                                          CommunicatorGroup* group) {
  if (o.optimizer.kind == OptimizerKind::sgd)
    return make_sgd(
        space, {.momentum = o.optimizer.beta1, .weight_decay = o.optimizer.weight_decay}, places);
  // Unlike the paper, the rate is not scaled by the weights: GPT-2's start out small, so that an
  // AdamW --lr would become fifty times smaller (200 steps at 1e-3: loss 4.5 instead of 2.6).
  if (o.optimizer.kind == OptimizerKind::adafactor)
    return make_adafactor(space,
                          {.weight_decay = o.optimizer.weight_decay, .scale_by_weights = false});
  if (o.optimizer.kind == OptimizerKind::muon) {
    MuonOptions options = muon_options(o.optimizer, setup.schedule.rate);
    options.sum = sum_over(group, space.device(), ranks, space.options().zero());
    return make_muon(space, options, places);
  }
  return make_adamw(space,
                    {.beta1 = o.optimizer.beta1,
                     .beta2 = o.optimizer.beta2,
                     .epsilon = o.optimizer.eps,
                     .weight_decay = o.optimizer.weight_decay},
                    places);
}

/// Returns the parameters of this rank's stages, or of all of the model without a pipeline.
std::vector<Parameter> parameters_of(Decoder& model, const PipelinePlan* plan, int stage) {
  return plan != nullptr ? model.parameters(plan->parts_of(stage)) : model.parameters();
}

std::vector<DecoderPart> parts_of(const RunSetup& setup, const PipelinePlan* plan, int stage) {
  return plan != nullptr ? plan->parts_of(stage)
                         : std::vector<DecoderPart>{{0, setup.config.n_layer}};
}

ModelLayouts::Shards layouts_of(const RunSetup& setup, const MemoryChoice& choice, int shards) {
  return setup.layouts->of(setup.config, choice.narrow_gradients, shards);
}

BucketPlan::Options bucket_options(const TrainConfig& o, const RunSetup& setup, int ranks) {
  return {.ranks = ranks,
          .bucket_bytes = o.parallel.bucket_bytes(setup.device == DeviceKind::cuda),
          .wide_bytes = size_of(accumulator_of(setup.precision.dtype)),
          .whole_tensors = takes_whole_tensors(o.optimizer.kind),
          .by_section = o.parallel.zero == 2};
}

/// Returns a number of ranks that gives the same buckets as all replicas. The parts of a bucket are
/// needed by ZeRO alone, and to compute them for thousands of replicas is slow.
int for_buckets(const Mesh& mesh) {
  return std::min(mesh.dp, 2);
}

/// Returns the parameters of the first shard, as this rank's buckets must be cut; none: they need
/// not be like others. Ranks that divide matrices update the same ones together.
std::vector<Parameter> like_parameters(const TrainConfig& o, const RunSetup& setup,
                                       const Mesh& mesh, int rank) {
  if (o.optimizer.kind != OptimizerKind::muon || mesh.tp == 1 || mesh.shard(rank) == 0) return {};
  Decoder first(setup.config, {.size = mesh.tp});
  std::vector<Parameter> parameters = parameters_of(first, setup.pipeline.get(), mesh.stage(rank));
  for (Parameter& parameter : parameters)
    parameter.tensor = nullptr;
  return parameters;
}

std::shared_ptr<const BucketPlan> divide(const std::vector<Parameter>& parameters,
                                         const TrainConfig& o, const RunSetup& setup,
                                         const MemoryChoice& choice, const Ranks& ranks) {
  const int parts = o.parallel.zero > 0 ? ranks.mesh.dp : for_buckets(ranks.mesh);
  return setup.bucket_plans->of({.stage = ranks.stage(),
                                 .shard = ranks.shard(),
                                 .narrow_gradients = choice.narrow_gradients,
                                 .options = bucket_options(o, setup, parts)},
                                parameters, like_parameters(o, setup, ranks.mesh, ranks.rank()));
}

/// Restricts the optimizer state (--zero 1 and 2) and the gradients (--zero 2) to the ranges that
/// this rank owns.
SpaceOptions owned_space(SpaceOptions options, const TrainConfig& o, const BucketPlan& bucket_plan,
                         const Ranks& ranks) {
  if (o.parallel.zero > 0 && ranks.mesh.dp > 1) options.owned = bucket_plan.owned(ranks.replica());
  options.shard_gradients = o.parallel.zero == 2 && ranks.mesh.dp > 1;
  return options;
}

Trainer::Options trainer_options(const RunSetup& setup, const MemoryChoice& choice) {
  Trainer::Options options = setup.trainer;
  options.micro_batch = choice.micro_batch;
  options.head_chunk = choice.head_chunk;
  return options;
}

}  // namespace

Exchanges largest_exchanges(const TrainConfig& options, const RunSetup& setup,
                            const MemoryChoice& choice, const Mesh& mesh) {
  const std::size_t wide = size_of(accumulator_of(setup.precision.dtype));
  const std::size_t narrow = size_of(setup.precision.dtype);
  Exchanges bytes{.stages = boundary_bytes(setup, choice)};
  // Takes the largest of these: hidden states of a micro-batch or prompt, softmax statistics, a
  // token's logits.
  const std::int64_t chunk = std::max(choice.head_chunk, LinearCrossEntropyOptions().chunk);
  const std::size_t softmax = static_cast<std::size_t>(3 * mesh.tp * chunk) * wide;
  // The gradients of a norm's one or two parameters.
  const std::size_t norm = static_cast<std::size_t>(2 * setup.config.n_embd) * wide;
  // The ranks sum what the adapters of q, k and v compute, of a batch or of a prompt.
  const std::int64_t rows =
      std::max(choice.micro_batch, EvaluationBatches::rows_for(setup.trainer.seq_len));
  const std::int64_t tokens = std::max(rows * setup.trainer.seq_len, setup.config.n_positions);
  const std::size_t adapters = static_cast<std::size_t>(tokens * 3 * setup.config.lora.rank) *
                               size_of(setup.precision.dtype);
  bytes.tensor = std::max({bytes.stages, softmax, norm, adapters,
                           static_cast<std::size_t>(setup.config.vocab_size) * wide});
  const ModelLayouts::Shards shards = layouts_of(setup, choice, mesh.tp);
  // Buckets differ between ranks, since each rank has other parameters.
  for (int part = 0; part < mesh.pp * mesh.tp; ++part) {
    // The gradient norm exchanges one number for every block of the space.
    std::size_t blocks = 0;
    for (const auto& stretch : shards->at(static_cast<std::size_t>(mesh.shard(part))).stretches)
      blocks += static_cast<std::size_t>(stretch.blocks());
    bytes.data = std::max(bytes.data, blocks * sizeof(double));
    Decoder model(setup.config, {.rank = mesh.shard(part), .size = mesh.tp});
    const SpaceLayout layout(parameters_of(model, setup.pipeline.get(), mesh.stage(part)),
                             {.narrow_gradients = choice.narrow_gradients});
    if (options.optimizer.kind == OptimizerKind::muon)
      for (const NewtonSchulz& iteration : muon_iterations(layout, setup.precision.dtype))
        bytes.tensor = std::max(bytes.tensor, static_cast<std::size_t>(iteration.sums().largest));
    const std::vector<Parameter> first = like_parameters(options, setup, mesh, part);
    const std::optional<SpaceLayout> like =
        first.empty() ? std::nullopt
                      : std::optional<SpaceLayout>(std::in_place, first,
                                                   LayoutOptions{choice.narrow_gradients});
    const BucketPlan bucket_plan(layout, bucket_options(options, setup, for_buckets(mesh)),
                                 like ? &*like : nullptr);
    for (const auto& bucket : bucket_plan.buckets()) {
      bytes.data = std::max(
          bytes.data, static_cast<std::size_t>(bucket.space.end - bucket.space.begin) * narrow);
      for (const auto& gradients : bucket.gradients)
        bytes.data =
            std::max(bytes.data, static_cast<std::size_t>(gradients.end - gradients.begin) *
                                     (gradients.narrow ? narrow : wide));
    }
  }
  return bytes;
}

std::size_t boundary_bytes(const RunSetup& setup, const MemoryChoice& choice) {
  const auto positions = static_cast<std::size_t>(setup.config.n_positions * setup.config.n_embd);
  const std::int64_t rows = EvaluationBatches::rows_for(setup.trainer.seq_len);
  return std::max({message_bytes(setup, choice.micro_batch), message_bytes(setup, rows),
                   positions * size_of(setup.precision.dtype)});
}

namespace {

/// Returns the sizes of a checkpoint's files, which are those of a single rank with the whole
/// model.
std::pair<std::uint64_t, std::uint64_t> bytes_of_checkpoint(const TrainConfig& options,
                                                            const RunSetup& setup,
                                                            const MemoryChoice& choice) {
  TrainConfig without_copy = options;
  without_copy.checkpoint.saving = Saving::wait;
  RunSetup whole = setup.without_data();
  whole.pipeline = nullptr;
  MemoryChoice on_device = choice;  // without a pipeline, no weights stream
  on_device.placement.offload_embeddings = false;
  for (Placement& block : on_device.placement.blocks)
    if (block.residency == Residency::host) block.residency = Residency::device;
  const DevicePtr device = make_meta_device(0, 0);
  Training training(without_copy, whole, on_device, device, make_host_memory(device, 0));
  const CheckpointFiles files = lay_out(training.checkpoint());
  return {files.weights.bytes(), files.optimizer.bytes()};
}

/// Returns none if each rank has the whole model. Of a tied table, the first stage's copy counts.
std::optional<ModelNorm> make_norm(ParameterSpace& space, const Ranks& ranks,
                                   const std::string& tied_table, const PipelinePlan* plan,
                                   const std::vector<SpaceLayout>& shards) {
  if (plan == nullptr && ranks.mesh.tp == 1) return std::nullopt;
  ModelNorm::Position position{.shard = ranks.shard()};
  if (plan != nullptr && ranks.stage() != plan->rank_of_stage.front()) position.copy = tied_table;
  return std::make_optional<ModelNorm>(space, shards, position, *ranks.control);
}

std::unique_ptr<Pipeline> make_pipeline(Decoder& model, ParameterSpace& space, const Ranks& ranks,
                                        const TrainConfig& options, const RunSetup& setup,
                                        const MemoryChoice& choice, const HostMemory& host) {
  if (!setup.pipeline) return nullptr;
  const bool gpu = setup.device == DeviceKind::cuda;
  const std::size_t element = size_of(accumulator_of(setup.precision.dtype));
  std::size_t bytes = options.parallel.bucket_bytes(gpu);
  // The table is exchanged through the buffers made for messages between stages on GPUs.
  if (gpu) bytes = std::min(bytes, boundary_bytes(setup, choice));
  return std::make_unique<Pipeline>(
      model, space, *setup.pipeline, ranks,
      static_cast<std::int64_t>(std::max<std::size_t>(1, bytes / element)), host.pinned);
}

std::unique_ptr<CommunicatorGroup> make_group(const Ranks& ranks, bool scratch) {
  if (ranks.mesh.tp == 1) return nullptr;
  return std::make_unique<CommunicatorGroup>(*ranks.tp_device, scratch);
}

}  // namespace

Training::Training(const TrainConfig& options, const RunSetup& setup, const MemoryChoice& choice,
                   const DevicePtr& device, const HostMemory& host, Ranks among)
    : ranks(std::move(among)),
      plan(setup.pipeline),
      tensor(make_group(ranks, setup.device == DeviceKind::cpu)),
      model(setup.config,
            {.rank = ranks.shard(),
             .size = ranks.mesh.tp,
             .group = tensor.get(),
             .divides_tokens = options.parallel.sequence_parallel && ranks.mesh.tp > 1}),
      whole(layouts_of(setup, choice, 1)),
      parameters(parameters_of(model, plan.get(), ranks.stage())),
      bucket_plan(divide(parameters, options, setup, choice, ranks)),
      frozen(make_frozen(model, parts_of(setup, plan.get(), ranks.stage()), device,
                         setup.precision.dtype)),
      space(parameters, device, setup.precision.dtype, ParameterSpace::Use::training,
            owned_space(space_options(options, choice, host), options, *bucket_plan, ranks)),
      optimizer(make_optimizer(options, setup, space, choice.staging.places, ranks, tensor.get())),
      norm(make_norm(space, ranks, model.tied_table(), plan.get(),
                     *layouts_of(setup, choice, ranks.mesh.tp))),
      parallel(space, *optimizer, *bucket_plan, *ranks.dp_device, *ranks.dp_host, *ranks.control,
               {.overlap = options.parallel.overlap,
                .scratch = setup.device == DeviceKind::cpu,
                .reports_loss = ranks.shard() == 0,
                .norm = norm ? &*norm : nullptr}),
      pipeline(make_pipeline(model, space, ranks, options, setup, choice, host)),
      trainer(model, space, parallel, setup.schedule, trainer_options(setup, choice),
              {.pipeline = pipeline.get(), .tensor = tensor.get()}) {
  if (choice.offloads_inputs()) {
    check(!plan, "a pipeline has several micro-batches under way");
    block_inputs.emplace(device, host.pinned);
    trainer.set_block_inputs(&*block_inputs);
  }
  model.set_recompute(choice.placement.recompute(), block_inputs ? &*block_inputs : nullptr);
  if (WeightRing* const ring = optimizer->weight_ring(); ring != nullptr) {
    check(plan && plan->layer_major && !space.options().zero(),
          "weights stream where a layer serves all micro-batches and ranks share no state");
    trainer.set_weight_ring(ring);
  }
  if (choice.count(Residency::speculative) > 0) {
    check(ranks.control->size() == 1, "gradients of several ranks are final after backward alone");
    speculation.emplace(space, *optimizer);
    trainer.set_speculation(&*speculation);
  }
  copy.wanted = options.checkpoint.saving == Saving::background;
  if (!copy.wanted || ranks.rank() > 0) return;
  std::tie(copy.weights, copy.optimizer) = bytes_of_checkpoint(options, setup, choice);
  const DevicePtr& place = setup.device == DeviceKind::cuda ? host.ordinary : device;
  const MemoryScope scope(*place, MemoryUse::checkpoint);
  copy.memory =
      Tensor::empty(place, {static_cast<std::int64_t>(copy.weights + copy.optimizer)}, DType::u8);
}

std::vector<std::int32_t> Training::sample(std::span<const std::int32_t> prompt,
                                           const Generation& options) {
  if (pipeline) return pipeline->generate(prompt, options);
  return generate(model, space.device(), prompt, options);
}

void Training::require_equal_copies(std::string_view when) {
  const Mesh& mesh = ranks.mesh;
  require_equal_weights(space, *ranks.dp_host, mesh.peers(ranks.rank()), when);
  if (mesh.tp > 1) require_equal_replicated(space, *ranks.tp_host, mesh.shards(ranks.rank()), when);
  if (plan && model.trains_tied())
    sluice::require_equal_copies(space, model.tied_table(), ranks.shard(), *ranks.control, when);
}

std::vector<std::int32_t> sample_prompt(const TrainConfig& o, const RunSetup& setup) {
  if (!setup.tokenizer) return {0};
  const Tokenizer& tokenizer = *setup.tokenizer;
  if (!o.evaluation.prompt.empty()) {
    std::vector<std::int32_t> ids = tokenizer.begin_of_text();
    std::ranges::copy(encode(tokenizer, o.evaluation.prompt, false), std::back_inserter(ids));
    return ids;
  }
  if (tokenizer.end_of_text()) return {*tokenizer.end_of_text()};
  return {tokenizer.encode("\n").front()};
}

std::string sample_text(const TrainConfig& o, const RunSetup& setup, Training& training,
                        std::int64_t step) {
  const Sampling sampling{.temperature = 0.8,
                          .top_k = 200,
                          .seed = o.seed + static_cast<std::uint64_t>(step),
                          .vocabulary = setup.tokenizer->vocab_size()};
  const auto made = training.sample(
      sample_prompt(o, setup), {.max_tokens = o.evaluation.sample_tokens, .sampling = sampling});
  return o.evaluation.prompt + setup.tokenizer->decode(made);
}

}  // namespace sluice
